from unisono.lab.bench.text import TOO_SHORT, as_text

SPREAD = {"median": 0.9, "least": 0.7, "most": 1.25}
NOTHING = {"median": 0.0, "least": 0.0, "most": 0.0}
JOB = {
    "parameters": 10_424_448,
    "tokens_a_step": 1_024,
    "workers": 2,
    "backend": "gloo",
    "turns": 5,
    "steps_a_block": 8,
}
FOUND = {
    "machine": {"torch": "2.13.0", "device": "AMD EPYC", "cores": 2, "compiled": True},
    "buffers": [
        {
            "dtype": "bfloat16",
            "elements": 1 << 30,
            "threads": 1,
            "gigabytes_a_second": {"copy": 4231.2, "vector_norm": 37.84, "ours": 9.418, "fingerprint": 1.0},
            "ours_to_vector_norm": 0.904,
            "ours_of_copy_speed": 0.988,
            "fingerprint_to_vector_norm": 2.52,
            "error_of_vector_norm": -1.6e-2,
            "error_of_ours": 3.2e-9,
        }
    ],
    "model": [
        {
            "dtype": "float32",
            "elements": 10_424_448,
            "threads": 2,
            "tensors": 48,
            "milliseconds": {"total_norm": 1.343, "ours": 0.4801},
            "ours_to_total_norm": 0.3575,
            "error_of_total_norm": 7.3e-4,
            "error_of_ours": -1e-8,
        }
    ],
    "step": [
        JOB
        | {
            "gradient_as_bucket_view": True,
            "interval": 187,
            "reading_milliseconds": 8.09,
            "milliseconds": {"without unisono": 898.1},
            "added_milliseconds": {"every step heard": {"median": 8.1}, "default schedule": {"median": -0.04}},
            "added_percent": {"every step heard": SPREAD, "default schedule": NOTHING},
            "extra_bytes": {"without unisono": 0, "every step heard": 3 << 19, "default schedule": 0},
        }
    ],
    "routes": JOB
    | {
        "milliseconds": {"plain DDP": 870.2, "exact, model": 980.7},
        "ratio": {"plain DDP": 1.0, "exact, model": 1.127},
        "spread": {"plain DDP": {"least": 1.0, "most": 1.0}, "exact, model": {"least": 1.1, "most": 1.2}},
    },
}


def test_tables_as_they_look():
    told = as_text(FOUND, 80, short=False)
    for line in (
        "AMD EPYC, 2 cores, torch 2.13.0, with compiled code for CPU",
        "  type         elements thr  copy  norm  ours  norm copy print   norm   ours",
        "  bfloat16 1,073,741,824   1  4231  37.8  9.42  0.90 0.99   2.5  2e-02  3e-09",
        "  type         elements thr  total   ours  ratio  total   ours",
        "  float32    10,424,448   2   1.34   0.48   0.36  7e-04  1e-08",
        "One step of training, gradient_as_bucket_view=True",
        "  without unisono        898.1 ms",
        "  every step heard        +8.1 ms   +0.90 %  (+0.70 to +1.25)",
        "  default schedule       -0.04 ms   +0.00 %  (+0.00 to +0.00)",
        "  more GPU memory          1.5 MiB",
        "  plain DDP              870.2 ms  1.000  (1.000 to 1.000)",
        "  exact, model           980.7 ms  1.127  (1.100 to 1.200)",
    ):
        assert line in told.splitlines()
    words = " ".join(told.split())
    assert "hears one step in 187: so unisono chooses from what it measured (8.09 ms a reading)" in words
    assert "10,424,448 parameters, 1,024 tokens a step and worker, 2 workers (gloo)" in words
    assert max(map(len, told.splitlines())) <= 80


def test_a_short_one_says_so():
    assert TOO_SHORT in as_text(FOUND, 80, short=True)
    assert TOO_SHORT not in as_text(FOUND, 80, short=False)


def test_memory_is_told_of_a_gpu_only():
    step = FOUND["step"][0] | {"extra_bytes": {"without unisono": 0, "every step heard": 0, "default schedule": 0}}
    assert "memory" not in as_text(FOUND | {"step": [step]}, 80, short=False)
