"""What a collector receives, decoded with OpenTelemetry's own messages."""

import http.client
import logging
import threading

import pytest
from opentelemetry import context
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from unisono import __version__
from unisono.show.sinks import opentelemetry
from unisono.sinks import OpenTelemetry
from unit.show.sinks.build import finding, reading, run

LOGGER = logging.getLogger("opentelemetry.exporter.otlp.proto.http.metric_exporter")


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    for name in ("OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES", "OTEL_METRIC_EXPORT_INTERVAL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(LOGGER, "filters", [])


def received(server, nth=-1):
    """Attributes of the resource, and each metric by its name."""
    request = ExportMetricsServiceRequest.FromString(server.got[nth][2])
    [resource] = request.resource_metrics
    [scope] = resource.scope_metrics
    assert (scope.scope.name, scope.scope.version) == ("unisono", __version__)
    return attributes(resource.resource), {metric.name: metric for metric in scope.metrics}


def attributes(thing):
    return {pair.key: pair.value for pair in thing.attributes}


def points(metric):
    return [(attributes(point), point.as_double or point.as_int) for point in metric.gauge.data_points]


def test_numbers_arrive_as_gauges(server, tmp_path):
    sink = OpenTelemetry(server.url).open(run(tmp_path, ranks=(4, 5)))
    sink.metrics([reading(1)])
    sink.metrics([reading(2, grad_norm=None)])
    assert [path for path, _, _ in server.got] == ["/v1/metrics"] * 2
    resource, metrics = received(server)
    assert resource["unisono.run"].string_value == "train"
    assert resource["service.name"].string_value == "unisono"
    assert points(metrics["unisono.loss.std"]) == [({}, 0.5)]
    assert points(metrics["unisono.grad.norm"]) == [({}, 3.5)]
    assert points(metrics["unisono.step"]) == [({}, 2)]
    assert points(metrics["unisono.running"]) == [({}, 1)]
    assert {metric.unit for metric in metrics.values()} == {"1"}
    assert metrics["unisono.loss.std"].description
    by_rank = [(rank["rank"].int_value, value) for rank, value in points(metrics["unisono.rank.norm"])]
    assert by_rank == [(4, 3.0), (5, 4.0)]
    assert len(points(metrics["unisono.rank.cos"])) == 1
    sink.close("")


def test_findings_and_the_verdict_arrive(server, tmp_path):
    sink = OpenTelemetry(f"{server.url}/my/path").open(run(tmp_path))
    sink.finding(finding())
    assert server.got[0][0] == "/my/path"
    [(labels, value)] = points(received(server)[1]["unisono.finding"])
    assert (labels["code"].string_value, labels["severity"].string_value, value) == ("UN101", "critical", 1)
    assert [rank.int_value for rank in labels["ranks"].array_value.values] == [1, 3]
    sink.close("found: UN101")
    [(labels, value)] = points(received(server)[1]["unisono.running"])
    assert (labels["verdict"].string_value, value) == ("found: UN101", 0)


def test_the_end_is_told_once_and_closing_again_is_harmless(server, tmp_path, caplog):
    sink = OpenTelemetry(server.url).open(run(tmp_path))
    for _ in range(2):
        sink.close("fine")
    assert len(server.got) == 1
    assert caplog.records == []


def test_the_usual_variables_are_followed(server, tmp_path, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-token=abc")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "team=blue")
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "2500")
    sink = OpenTelemetry().open(run(tmp_path))
    sink.metrics([reading(1)])
    assert sink.seconds == 2.5
    path, headers, _ = server.got[0]
    assert (path, headers["x-token"]) == ("/v1/metrics", "abc")
    resource, _ = received(server)
    assert (resource["service.name"].string_value, resource["team"].string_value) == ("mine", "blue")


def test_a_refusal_is_not_told_by_the_package_as_well(server, tmp_path, caplog):
    server.answer = lambda request: (400, {})
    sink = OpenTelemetry(server.url).open(run(tmp_path))
    with pytest.raises(ConnectionError):
        sink.metrics([reading(1)])
    assert caplog.records == []
    voice = threading.Thread(target=LOGGER.warning, args=["of the script"])
    voice.start()
    voice.join()
    assert [record.message for record in caplog.records] == ["of the script"]
    with pytest.raises(ConnectionError):
        sink.close("")
    LOGGER.warning("after the end")
    assert len(caplog.records) == 2


def test_a_refusal_is_an_error_and_the_finding_can_be_sent_again(server, tmp_path):
    server.answer = lambda request: (400, {})
    sink = OpenTelemetry(server.url).open(run(tmp_path))
    with pytest.raises(ConnectionError):
        sink.finding(finding())
    server.answer = lambda request: (200, {})
    sink.finding(finding())
    assert len(points(received(server)[1]["unisono.finding"])) == 1


def test_our_requests_do_not_show_in_the_scripts_traces(server, tmp_path, monkeypatch):
    suppressed, put = [], http.client.HTTPConnection.putrequest

    def seen(*arguments, **options):
        suppressed.append(is_suppressed())
        return put(*arguments, **options)

    def is_suppressed():
        return context.get_value(context._SUPPRESS_INSTRUMENTATION_KEY)

    monkeypatch.setattr(http.client.HTTPConnection, "putrequest", seen)
    sink = OpenTelemetry(server.url).open(run(tmp_path))
    sink.metrics([reading(1)])
    server.answer = lambda request: (400, {})
    with pytest.raises(ConnectionError):
        sink.finding(finding())
    assert suppressed == [True, True]
    assert not is_suppressed()


def test_a_sink_that_could_not_be_opened_leaves_nothing_behind(server, tmp_path, monkeypatch):
    def fail(_):
        raise RuntimeError("no attributes")

    monkeypatch.setattr(opentelemetry, "_attributes", fail)
    for _ in range(3):
        with pytest.raises(RuntimeError):
            OpenTelemetry(server.url).open(run(tmp_path))
    assert LOGGER.filters == []


def test_the_scripts_own_meters_are_left_alone(server, tmp_path):
    from opentelemetry import metrics

    before = metrics.get_meter_provider()
    OpenTelemetry(server.url).open(run(tmp_path)).metrics([reading(1)])
    assert metrics.get_meter_provider() is before
