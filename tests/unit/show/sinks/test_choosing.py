"""What users write, and what they are told when it cannot be meant."""

import subprocess
import sys

import pytest

import unisono
from unisono.cli.commands.run import parse, prepare
from unisono.common.errors import UserError
from unisono.show.sinks.choosing import chosen, read
from unisono.sinks import Prometheus, TensorBoard, WandB, Webhook


@pytest.mark.parametrize(
    ("text", "sink"),
    [
        ("tensorboard:", TensorBoard()),
        ("tensorboard:names=manuals", TensorBoard(names="manuals")),
        ("prometheus:port=9108", Prometheus(port=9108)),
        ("webhook:least=critical,url=https://a.b/c", Webhook("https://a.b/c", "critical")),
    ],
)
def test_a_sink_is_read_with_some_of_its_options(text, sink):
    assert read(text) == [sink]


def test_several_are_read():
    assert read(" tensorboard ; prometheus:port=9108;") == [TensorBoard(), Prometheus(port=9108)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tensorbord", "one of tensorboard, wandb, mlflow, prometheus, opentelemetry, webhook. Found `tensorbord`"),
        ("prometheus:prt=1", "takes the options textfile, port. Found `prt`"),
        ("prometheus:port", "needs a value"),
        ("prometheus:port=", "needs a value"),
        ("prometheus:port=http", "should be a whole number. Found `http`"),
        ("prometheus:port=70000", "from 1 to 65535. Found 70000"),
        ("webhook", "needs `url`"),
        ("webhook:url=https://a.b,least=loud", "one of info, warning, critical. Found something else"),
        ("webhook:url=file:///etc/passwd", "should begin with http:// or https://"),
        ("webhook:url=ftp://a.b/c", "should begin with http:// or https://"),
        ("webhook:url=https://", "and a host"),
        ("webhook:url=https://me:secret@a.b/c", "without a user name"),
        ("webhook:url=https://a.b:http/c", "should begin with"),
        ("webhook:url=https://a.b/c d", "should begin with"),
        ("opentelemetry:endpoint=c:4317", "should begin with http:// or https://"),
        ("tensorboard:names=ours", "Found `ours`"),
    ],
)
def test_what_cannot_be_meant_is_refused(text, words):
    with pytest.raises(UserError) as refusal:
        read(text)
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert "secret" not in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("webhook:https://hooks.example.org/T0/B0/SECRET", "takes the options url, least. Found something else."),
        ("webhook:https://a.b/c?SECRET=1", "Write: webhook:url=https://... (a comma inside is written %2C)"),
        ("webhook:url=https://a.b/c,SECRET", "(a comma inside is written %2C)"),
        ("webhook:url=https://a.b/c;SECRET", "a sink should be one of"),
        ("webhook:url=https://a.b/c;prometheus:port=SECRET", "a whole number. Found something else"),
        ("webhook:SECRET", "takes the options url, least"),
        ("webhook:url=SECRET", "should begin with http:// or https://"),
        ("webhook:url=https://a.b,least=SECRET", "should be one of info, warning, critical"),
        ("hooks.example.org/T0/B0/SECRET", "a sink should be one of"),
        ("https://hooks.example.org/SECRET", "a sink should be one of"),
        ("opentelemetry:https://a.b/SECRET", "takes the options endpoint. Found something else."),
        ("prometheus:port=https://a.b/SECRET", "a whole number. Found something else"),
        ("tensorboard:names=https://a.b/SECRET", "Found something else"),
    ],
)
def test_what_may_be_a_secret_is_not_repeated(text, words, capsys):
    with pytest.raises(UserError) as refusal:
        read(text)
    assert words in str(refusal.value)
    assert chosen(None, text) == ()
    told = capsys.readouterr().err
    assert "UNISONO_SINKS is passed over" in told
    assert "SECRET" not in told + str(refusal.value)


def test_names_objects_and_the_environment_add_up_and_count_once():
    hook = Webhook("https://a.b/c")
    assert chosen(["tensorboard", hook, TensorBoard()], "wandb;tensorboard") == (TensorBoard(), hook, WandB())
    assert chosen(None, "") == ()
    assert chosen("wandb", "") == (WandB(),)
    assert chosen(hook, "") == (hook,)


@pytest.mark.parametrize("wrong", [[3], [None], ["nowhere"]])
def test_attach_refuses_what_is_no_sink(wrong):
    with pytest.raises(ValueError, match="a sink should be"):
        chosen(wrong, "")


def test_the_address_of_a_webhook_is_not_shown():
    assert "secret" not in repr(Webhook("https://a.b/secret"))


def test_run_hands_sinks_on_in_the_environment(tmp_path):
    request = parse(["--sink", "tensorboard", "--sink=webhook:url=https://a.b/c", "--", "echo"])
    prepared = prepare(request, {"UNISONO_RUN_DIR": str(tmp_path)})
    assert prepared["UNISONO_SINKS"] == "tensorboard;webhook:url=https://a.b/c"
    assert chosen(None, prepared["UNISONO_SINKS"]) == (TensorBoard(), Webhook("https://a.b/c"))


@pytest.mark.parametrize(("value", "words"), [("nowhere", "Found `nowhere`"), (";", "an empty name")])
def test_run_refuses_what_is_no_sink(value, words):
    with pytest.raises(UserError, match=words):
        parse(["--sink", value, "--", "echo"])


def test_sinks_are_reached_from_the_package_and_import_nothing_of_others():
    assert unisono.sinks.Webhook is Webhook
    packages = ("torch", "tensorboard", "wandb", "mlflow", "prometheus_client", "opentelemetry", "numpy")
    code = f"import sys, unisono; unisono.sinks.TensorBoard(); print([p for p in {packages} if p in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_mistake_in_the_environment_does_not_keep_unisono_from_listening(capsys):
    assert chosen(["tensorboard"], "nonsense") == (TensorBoard(),)
    assert "UNISONO_SINKS is passed over" in capsys.readouterr().err
