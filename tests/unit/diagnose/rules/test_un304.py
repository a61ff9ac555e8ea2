from unisono.diagnose.rules.un304_buffers_differ import BuffersDiffer
from unit.diagnose.rules.build import judge, step


def look(number, *buffers_W):
    return step(number, audits=("buffers",), buffers_W=buffers_W)


def test_statistics_of_their_own():
    found = judge(BuffersDiffer, look(0, 0, 1, 2, 3))
    assert (found.severity, found.ranks, found.causes[0].slug) == ("warning", (), "broadcast-buffers-off")
    assert "broadcast_buffers" in found.remedies[0]


def test_one_against_all_is_named():
    found = judge(BuffersDiffer, look(0, 0, 0, 2, 0))
    assert found.ranks == (2,)
    assert {cause.slug for cause in found.causes} == {"broadcast-buffers-off", "changed-on-some-ranks"}


def test_two_workers_name_nobody():
    assert judge(BuffersDiffer, look(0, 0, 1), world=2).ranks == ()


def test_healthy():
    assert judge(BuffersDiffer, look(0), step(1, audits=("weights",))) is None


def test_resolves():
    assert judge(BuffersDiffer, look(0, 0, 1, 2, 3), look(1), look(2), look(3)).state == "resolved"
