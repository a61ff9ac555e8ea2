from unisono.lab.bench.request import GPU_SIZES, BenchRequest, short, usual


def test_a_request_travels_as_one_line():
    request = short(usual("cuda", None, 4), None)
    assert "\n" not in request.as_line()
    assert BenchRequest.from_line(request.as_line()) == request


def test_a_gpu_is_asked_for_more_and_has_one_worker():
    on_gpu, on_cpu = usual("cuda", None, None), usual("cpu", None, None)
    assert (on_gpu.workers, on_cpu.workers) == (1, 2)
    assert on_gpu.parameters > on_cpu.parameters
    assert on_gpu.sizes == GPU_SIZES


def test_both_kinds_of_buckets_are_measured():
    assert usual("cpu", None, None).bucket_views == (False, True)
