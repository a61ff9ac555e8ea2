"""`unisono.guard`: its options, its file, and what is refused."""

import sys
from dataclasses import replace

import pytest

import unisono
from unisono.act.guard import options_file as guard_file
from unisono.act.guard.options import Checkpoints, Guard, from_environment, guard
from unisono.common.errors import UserError
from unisono.policy import Row


def row(name="mine"):
    return Row(name, lambda now: None, "skip")


def names(asked):
    return [one.name for one in asked.policy().rows]


def test_the_guard_skips_and_nothing_else():
    assert names(unisono.guard()) == ["non-finite", "extreme"]
    assert {action for one in unisono.guard().policy().rows for action in one.actions} == {"skip"}
    assert unisono.guard().checkpoints is None


def test_everything_else_is_asked_for_by_name():
    asked = guard(
        clip=True, rollback=True, resync=500, reset_momentum=True, halt=["UN410"], reseed=True, rows=[row()], skip=False
    )
    assert names(asked) == [
        *("explosion", "spikes-persist", "replicas-differ", "periodic", "identical-randomness", "critical"),
        *("mine", "clip"),
    ]
    assert names(guard(resync=True)) == ["non-finite", "extreme", "replicas-differ"]


def test_rolling_back_takes_checkpoints():
    assert guard(rollback=True).checkpoints == Checkpoints()
    own = unisono.Checkpoints(every=7)
    assert guard(rollback=True, checkpoints=own).checkpoints is own


def test_a_row_of_the_users_own_that_resyncs_may_say_whose_replica_counts():
    assert guard(resync_from="first", rows=[Row("mine", lambda now: None, "resync")]).resync_from == "first"


def test_stopping_because_it_did_not_help_is_asked_for_by_name():
    assert not any(guard(halt=halt).policy().halts_unhelped for halt in (False, True, ["UN410"]))
    assert guard(halt=["UN410", "UN602"]).policy().halts_unhelped


def test_budget_and_dry_run_reach_the_policy():
    policy = guard(budget=5, per=10, dry_run=True).policy()
    assert (policy.budget, policy.per, policy.dry_run) == (5, 10, True)
    assert guard(budget=False).policy().budget is None
    assert guard(budget=0).policy().budget == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rolback": True}, "Found `rolback`. Did you mean `rollback`?"),
        ({"skip": 1}, "`skip` of the guard should be True or False. Found 1"),
        ({"norm_spike": 1}, "`norm_spike` of the guard should be a number above 1 or False or True. Found 1"),
        ({"loss_spike": True}, "Found True"),
        ({"loss_spike": float("nan")}, "Found nan"),
        ({"loss_spike": "20"}, "Found '20'"),
        ({"clip": 0}, "`clip`"),
        ({"clip": -1.0}, "`clip`"),
        ({"rollback": 0.5}, "`rollback`"),
        ({"resync": 2.5}, "`resync` of the guard should be a whole number from 1 up or False or True"),
        ({"resync": 0}, "`resync`"),
        ({"resync": 9, "resync_from": "rank 0"}, "should be `majority` or `first`. Found 'rank 0'"),
        ({"resync_from": "first"}, "Found it without `resync`"),
        ({"reset_momentum": 11}, "whole number from 1 to 10"),
        ({"halt": "UN410"}, "list of codes"),
        ({"halt": []}, "list of codes"),
        ({"halt": ["UN999"]}, "Found 'UN999'"),
        ({"rows": [lambda now: None]}, "should be a list of `unisono.policy.Row`"),
        ({"rows": 3}, "should be a list"),
        ({"checkpoints": {"every": 3}}, "unisono.Checkpoints"),
        ({"checkpoints": Checkpoints()}, "without `rollback`"),
        ({"rows": [Row("back", lambda now: "now", "roll-back")]}, "needs checkpoints"),
        ({"file": True}, "path of a TOML file"),
        ({"budget": -1}, "`budget`"),
        ({"budget": True}, "`budget`"),
        ({"per": 0}, "`per`"),
        ({"every": False}, "`every`"),
    ],
)
def test_what_cannot_be_is_refused(options, words):
    with pytest.raises(UserError) as refusal:
        guard(**options)
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"every": 0}, "`checkpoints.every`"),
        ({"keep": True}, "`checkpoints.keep`"),
        ({"quiet": 1.5}, "`checkpoints.quiet`"),
        ({"where": "cloud"}, "`memory` or `disk`"),
        ({"save": print}, "together"),
        ({"save": print, "load": 3}, "function of a step"),
    ],
)
def test_checkpoints_that_cannot_be_are_refused(options, words):
    with pytest.raises(UserError, match=words):
        Checkpoints(**options)


def test_two_workers_that_were_asked_for_the_same_say_the_same():
    own = {"rows": [row()], "rollback": True, "checkpoints": Checkpoints(save=print, load=print)}
    assert guard(**own).described() == guard(**own | {"rows": [row()]}).described()
    base = guard(rollback=True)
    others = [
        replace(base, norm_spike=11.0),
        replace(base, rows=[row()]),
        replace(base, rows=[row("other")]),
        replace(base, checkpoints=Checkpoints(every=7)),
        replace(base, dry_run=True),
        replace(base, budget=4),
        replace(base, resync=True, resync_from="first"),
    ]
    assert len({one.described() for one in [base, *others]}) == 8
    assert "0x" not in guard(**own).described()


def written(folder, text):
    file = folder / "guard.toml"
    file.write_text(text)
    return file


def test_a_file_and_what_counts_more_than_it(tmp_path):
    file = written(
        tmp_path,
        """
        [guard]
        norm_spike = 25
        halt = ["UN410"]
        rollback = true
        [guard.checkpoints]
        every = 50
        where = "disk"
        [listening]
        every = 20
        """,
    )
    expected = Guard(
        norm_spike=25, halt=["UN410"], rollback=True, checkpoints=Checkpoints(every=50, where="disk"), every=20
    )
    assert unisono.guard(file) == expected
    assert unisono.guard(str(file), rollback=False, budget=9) == replace(
        expected, rollback=False, budget=9, checkpoints=None
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[guard]\nnorm_spik = 3", "Did you mean `norm_spike`?"),
        ("[guard]\nrows = []", "Found `rows`"),
        ("[guard]\nnorm_spike = 'much'", "Found 'much'"),
        ("[guard]\nevery = -1", "`every`"),
        ("[guard.checkpoints]\nevry = 3", "Did you mean `every`?"),
        ("[guard]\ncheckpoints = 3", "should be a table"),
        ("[guard.checkpoints]\nwhere = 'cloud'", "`memory` or `disk`"),
        ("norm_spike = 3", "Found `norm_spike`"),
        ("guard = 3", "should be a table"),
        ("", "should have a table `[guard]`"),
        ("[guard]\n[listening]\nevry = 3", "Found `evry`"),
        ("[guard", "should be TOML"),
        ("[guard]\nclip = " + "[" * 5000 + "]" * 5000, "nested too deeply"),
    ],
)
def test_mistakes_in_a_file_name_the_file(text, words, tmp_path):
    file = written(tmp_path, text)
    with pytest.raises(UserError) as refusal:
        guard(file)
    assert words in str(refusal.value)
    assert str(file) in str(refusal.value)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(UserError, match="No such file"):
        guard(tmp_path / "none.toml")
    with pytest.raises(UserError, match="directory"):
        guard(tmp_path)
    (tmp_path / "guard.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="should be TOML"):
        guard(tmp_path / "guard.toml")


def test_without_a_parser_the_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tomllib", None)
    monkeypatch.setitem(sys.modules, "tomli", None)
    with pytest.raises(UserError, match="pip install tomli"):
        guard_file.read_guard_file(written(tmp_path, "[guard]"))


def test_the_environment(tmp_path):
    assert from_environment(None) is None
    assert from_environment("") is None
    assert from_environment("on") == Guard()
    assert from_environment(str(written(tmp_path, "[guard]\nclip = 2.0"))) == Guard(clip=2.0)
