import pytest

from unisono.diagnose.rules.un106_sampler_misconfigured import SamplerMisconfigured
from unit.diagnose.rules.build import attempt, facts, judge, loader

PLAIN = ("sampler rank", "sampler replicas", "sampler seed", "sampler epoch")


def test_replicas_that_are_not_the_world():
    found = judge(SamplerMisconfigured, loader(same={"sampler replicas": "8"}))
    assert (found.severity, found.ranks, found.causes[0].slug) == ("critical", (), "replicas-not-world-size")


def test_one_rank_counts_on_others():
    found = judge(SamplerMisconfigured, loader(sampler_replicas="4424"))
    assert found.ranks == (2,)


def test_a_rank_that_is_taken():
    found = judge(SamplerMisconfigured, loader(ranks=(0, 1, 2, 1)))
    assert (found.severity, found.ranks, found.causes[0].slug) == ("critical", (3,), "sampler-rank-taken")


def test_the_evidence_itself_names_one_of_two():
    assert judge(SamplerMisconfigured, loader(world=2, ranks=(0, 0)), world=2).ranks == (1,)


@pytest.mark.parametrize("name", ["shuffle", "drop_last", "batch_size", "sampler"])
def test_arguments_that_differ(name):
    found = judge(SamplerMisconfigured, loader(**{name: "aaba"}))
    assert (found.severity, found.ranks, found.causes[0].slug) == ("warning", (2,), "loader-arguments-differ")


def test_one_dataset_with_lengths_that_differ():
    found = judge(SamplerMisconfigured, loader(length=("10", "10", "9", "10")))
    assert (found.severity, found.ranks, found.causes[0].slug) == ("warning", (2,), "lengths-differ")


def test_datasets_of_different_sizes_are_an_info():
    """Uneven inputs are what Join is for."""
    found = judge(SamplerMisconfigured, loader(length="9989", dataset="9989", leave_out=PLAIN))
    assert (found.severity, found.ranks) == ("info", ())


@pytest.mark.parametrize(
    "record",
    [
        loader(leave_out=PLAIN, same={"sampler": "RandomSampler"}),
        loader(leave_out=("sampler rank",), same={"sampler replicas": "1", "sampler rank": "0"}),
    ],
)
def test_everybody_through_everything_is_an_info(record):
    found = judge(SamplerMisconfigured, record)
    assert (found.severity, found.ranks, found.causes[0].slug) == ("info", (), "no-distributed-sampler")


HEALTHY = {
    "as it should be": loader(),
    "ranks in another order": loader(ranks=(1, 0, 3, 2)),
    "a silent rank": loader(sampler_rank=("0", None, "2", "3"), length=("10", None, "10", "10")),
    "numbers of loader workers": loader(workers="0420"),
    "an iterable dataset": facts("loader", same={"dataset kind": "iterable", "number": "0"}),
    "no shuffle": loader(leave_out=PLAIN, same={"sampler": "SequentialSampler"}),
    "another topic": facts("model", shuffle="abaa"),
}


@pytest.mark.parametrize("record", HEALTHY.values(), ids=HEALTHY)
def test_healthy(record):
    assert judge(SamplerMisconfigured, record) is None


def test_one_process_needs_no_division():
    record = loader(leave_out=PLAIN, same={"sampler": "RandomSampler"}, world=1)
    assert judge(SamplerMisconfigured, record, world=1) is None


def test_a_restart_with_right_arguments_resolves():
    records = attempt(), loader(same={"sampler replicas": "8"}), attempt(number=2), loader()
    assert judge(SamplerMisconfigured, *records).state == "resolved"


def test_a_model_of_some_ranks_may_share_the_data_of_the_whole_job():
    settings = facts("settings", same={"job": "8"})
    whole_job = loader(same={"sampler replicas": "8"})
    assert judge(SamplerMisconfigured, settings, whole_job) is None
    assert judge(SamplerMisconfigured, whole_job) is not None


def test_where_nobody_knows_how_many_workers_there_are():
    """The line that says so is damaged."""
    assert judge(SamplerMisconfigured, loader(), world=0) is None


def test_a_rank_that_one_alone_has_said_is_not_shared():
    said = facts("loader", same={"sampler replicas": "2"}, sampler_rank=(None, "1"))
    assert judge(SamplerMisconfigured, said, world=2) is None
