from unisono.diagnose.rules.un202_unequal_initialisation import UnequalInitialisation
from unit.diagnose.rules.build import attempt, facts, judge


def test_one_rank_starts_from_other_weights():
    found = judge(UnequalInitialisation, facts("initial", weights="aaba"))
    assert (found.severity, found.ranks, found.causes[0].slug) == ("critical", (2,), "changed-after-wrapping")
    assert "rank 2 against ranks 0, 1 and 3" in found.why


def test_all_start_from_other_weights():
    found = judge(UnequalInitialisation, facts("initial", weights="abcd"))
    assert found.ranks == ()
    assert "no two workers agree" in found.why


def test_two_workers_are_undecidable():
    found = judge(UnequalInitialisation, facts("initial", weights="ab"), world=2)
    assert (found.ranks, found.evidence["undecidable"]) == ((), "between ranks 0 and 1")


def test_healthy():
    assert judge(UnequalInitialisation, facts("initial", same={"weights": "a"})) is None
    assert judge(UnequalInitialisation, facts("initial", weights=("a", None, "a", "a"))) is None
    assert judge(UnequalInitialisation, facts("model", weights="aaba")) is None


def test_a_restart_from_equal_weights_resolves():
    records = facts("initial", weights="aaba"), attempt(number=2), facts("initial", same={"weights": "a"})
    assert judge(UnequalInitialisation, *records).state == "resolved"
