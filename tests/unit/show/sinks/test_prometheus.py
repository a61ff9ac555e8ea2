"""What Prometheus' own parser makes of our file and of our endpoint."""

import os
import socket
import urllib.error
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from unisono.sinks import Prometheus
from unit.show.sinks.build import finding, reading, run
from unit.show.sinks.payloads import PAYLOADS


def parsed(text):
    return {family.name: family for family in text_string_to_metric_families(text)}


def samples(families, name):
    return [(sample.labels, sample.value) for sample in families[name].samples]


def free_port():
    with socket.socket() as reader:
        reader.bind(("127.0.0.1", 0))
        return reader.getsockname()[1]


def test_the_newest_numbers_are_gauges_in_a_file(tmp_path):
    sink = Prometheus().open(run(tmp_path, ranks=(4, 5)))
    sink.metrics([reading(1)])
    sink.metrics([reading(2, grad_norm=None, loss_W=(1.0, 7.0))])
    found = parsed((tmp_path / "unisono.prom").read_text())
    label = {"run": "train"}
    assert samples(found, "unisono_step") == [(label, 2)]
    assert samples(found, "unisono_loss_std") == [(label, 0.5)]
    assert samples(found, "unisono_grad_norm") == [(label, 3.5)]
    assert samples(found, "unisono_rank_loss") == [({**label, "rank": "4"}, 1), ({**label, "rank": "5"}, 7)]
    assert samples(found, "unisono_rank_cos") == [({**label, "rank": "4"}, 0.25)]
    assert found["unisono_loss_std"].type == "gauge"
    assert "deviation" in found["unisono_loss_std"].documentation
    assert os.listdir(tmp_path) == ["unisono.prom"]


def test_findings_are_gauges_with_their_severity(tmp_path):
    sink = Prometheus(str(tmp_path / "mine.prom")).open(run(tmp_path))
    sink.finding(finding(severity="warning"))
    sink.finding(finding(severity="critical"))
    sink.finding(finding("UN404", ranks=()))
    found = parsed((tmp_path / "mine.prom").read_text())
    labels = [labels for labels, value in samples(found, "unisono_finding") if value == 1]
    assert [(one["code"], one["severity"], one["ranks"]) for one in labels] == [
        ("UN101", "critical", "1,3"),
        ("UN404", "critical", ""),
    ]
    assert labels[0]["title"] == "Several workers load the same data"


def test_the_end_of_the_run_shows(tmp_path):
    sink = Prometheus().open(run(tmp_path))
    file = tmp_path / "unisono.prom"
    assert samples(parsed(file.read_text()), "unisono_running") == [({"run": "train"}, 1)]
    sink.close("nothing suspicious was found")
    assert samples(parsed(file.read_text()), "unisono_running") == [({"run": "train"}, 0)]


def test_a_scraper_on_this_machine_gets_the_same(tmp_path):
    port = free_port()
    sink = Prometheus(port=port).open(run(tmp_path))
    try:
        sink.metrics([reading(8)])
        sink.finding(finding())
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            found = parsed(answer.read().decode())
        assert samples(found, "unisono_step") == [({"run": "train"}, 8)]
        assert len(samples(found, "unisono_finding")) == 1
        assert os.listdir(tmp_path) == []
        with pytest.raises(urllib.error.HTTPError, match="405"):
            urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{port}/", data=b"x"), timeout=5)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port), timeout=5)
    finally:
        sink.close("")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)


def test_a_port_that_is_taken_can_be_tried_again(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match="in use"):
            Prometheus(port=port).open(run(tmp_path))
    Prometheus(port=port).open(run(tmp_path)).close("")


def test_each_model_of_a_job_has_its_own_file(tmp_path):
    chosen = Prometheus(str(tmp_path / "mine.prom"))
    for part, step in (("", 1), ("model-2", 2), ("ranks-4-7/model-3", 3)):
        chosen.open(run(tmp_path / "run", part=part)).metrics([reading(step)])
    files = {"mine.prom": 1, "mine-model-2.prom": 2, "mine-ranks-4-7-model-3.prom": 3}
    assert set(os.listdir(tmp_path)) == files.keys()
    for name, step in files.items():
        assert samples(parsed((tmp_path / name).read_text()), "unisono_step") == [({"run": "train"}, step)]


def test_a_second_model_goes_to_its_file_where_the_first_has_the_port(tmp_path, capsys):
    port = free_port()
    first, second = (Prometheus(port=port).open(run(tmp_path, part=part)) for part in ("", "model-2"))
    try:
        assert f"port {port} is taken by another; the numbers of model-2 are in {tmp_path}" in capsys.readouterr().err
        first.metrics([reading(1)])
        second.metrics([reading(2)])
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            assert samples(parsed(answer.read().decode()), "unisono_step")[0][1] == 1
        assert samples(parsed((tmp_path / "unisono.prom").read_text()), "unisono_step")[0][1] == 2
    finally:
        second.close("")
        first.close("")


def test_the_metrics_of_the_script_itself_are_left_alone(tmp_path):
    import prometheus_client

    before = prometheus_client.generate_latest()
    Prometheus().open(run(tmp_path)).metrics([reading(1)])
    assert b"unisono" not in prometheus_client.generate_latest()
    assert b"unisono" not in before


@pytest.mark.parametrize("payload", PAYLOADS, ids=range(len(PAYLOADS)))
def test_no_name_breaks_out_of_its_label(payload, tmp_path):
    sink = Prometheus().open(run(tmp_path, name=payload))
    sink.metrics([reading(1)])
    sink.finding(finding(title=payload))
    found = parsed((tmp_path / "unisono.prom").read_bytes().decode())
    assert samples(found, "unisono_step") == [({"run": payload}, 1)]
    [(labels, value)] = samples(found, "unisono_finding")
    assert (labels["run"], labels["title"], labels["code"], value) == (payload, payload, "UN101", 1)
    assert all(name.startswith("unisono_") for name in found)
