from unisono.diagnose.rules.un305_parameters_not_optimised import ParametersNotOptimised
from unit.diagnose.rules.build import facts, judge


def test_a_layer_without_an_optimizer():
    found = judge(ParametersNotOptimised, facts("parameters", 20, {"not optimised": "down.weight, down.bias"}))
    assert (found.severity, found.ranks, found.causes[0].slug) == ("warning", (), "missing-from-optimizer")
    assert found.why == "2 trainable parameters are in no optimizer: down.weight, down.bias"


def test_a_single_one():
    found = judge(ParametersNotOptimised, facts("parameters", 20, {"not optimised": "scale"}))
    assert found.why == "1 trainable parameter is in no optimizer: scale"


def test_a_layer_without_gradients_is_an_info():
    found = judge(ParametersNotOptimised, facts("parameters", 20, {"never with gradient": "head.bias"}))
    assert (found.severity, found.causes[0].slug) == ("info", "not-used")


def test_what_lacks_both_is_told_once():
    both = {"not optimised": "a, b", "never with gradient": "b, c"}
    found = judge(ParametersNotOptimised, facts("parameters", 20, both))
    assert found.severity == "warning"
    assert "never had a gradient: c" in found.why


def test_many_names_are_shortened():
    names = ", ".join(f"layer{n}.weight" for n in range(40))
    found = judge(ParametersNotOptimised, facts("parameters", 20, {"not optimised": names}))
    assert found.why.startswith("40 trainable")
    assert found.why.endswith("layer4.weight, ...")


def test_ranks_that_say_different_things():
    found = judge(ParametersNotOptimised, facts("parameters", 20, not_optimised=("a", None, "a, b", "a")))
    assert "2 trainable parameters" in found.why


def test_healthy():
    assert judge(ParametersNotOptimised, facts("parameters", 20), facts("model", same={"not optimised": "a"})) is None


def test_resolves():
    found = judge(ParametersNotOptimised, facts("parameters", 20, {"not optimised": "a"}), facts("parameters", 40))
    assert found.state == "resolved"
