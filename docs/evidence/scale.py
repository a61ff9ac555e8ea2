"""Writes the tables of docs/scale.md from the evidence beside this file.

python docs/evidence/scale.py
"""

from pathlib import Path

from marked import load, write

PAGE = Path(__file__).parents[1] / "scale.md"
FAR = 100_000
STAGES = ("decode", "messages", "metrics", "record")


def measured():
    found = load("scale.json")
    lines = [
        "| workers | sketch | bytes a rank sends | received | decode | messages | "
        "measures | record and rules | **rank 0 in all** | store, waiting | memory grown | record |",
        "|---" * 12 + "|",
    ]
    for one in found["results"]:
        times = one["milliseconds"]
        stages = " | ".join(f"{times[stage]:.1f}" for stage in STAGES)
        lines.append(
            f"| {one['workers']:,} | {one['sketch_length']:,} | {one['bytes_per_rank']:,} | "
            f"{one['megabytes_at_rank_0']:.1f} MB | {stages} | **{one['milliseconds_at_rank_0']:.0f} ms** | "
            f"{times['store']:.0f} ms | {one['megabytes_grown']:.0f} MB | {one['kilobytes_of_record']:.0f} kB |"
        )
    lines += [
        "",
        f"`{found['command']}` on one thread of an {found['processor']}, torch {found['torch']}; medians of "
        f"{found['readings']} readings. A worker with the wrong sign was named at every size, alone, "
        f"{named(found)} readings after it began; healthy runs of the same length found nothing.",
    ]
    return "\n".join(lines)


def named(found):
    after = [one["named_after_readings"] for one in found["results"]]
    return f"{min(after)} to {max(after)}"


def slope(results, value):
    """Of the two largest sizes, per worker."""
    small, large = results[-2:]
    return (value(large) - value(small)) / (large["workers"] - small["workers"])


def far():
    results = load("scale.json")["results"]
    largest = results[-1]
    beyond = FAR - largest["workers"]
    time = largest["milliseconds_at_rank_0"] + beyond * slope(results, lambda one: one["milliseconds_at_rank_0"])
    store = largest["milliseconds"]["store"] + beyond * slope(results, lambda one: one["milliseconds"]["store"])
    size = slope(results, lambda one: one["kilobytes_of_record"])
    return (
        f"From the slope between {results[-2]['workers']:,} and {largest['workers']:,} workers: at {FAR:,} a reading "
        f"would take rank 0 {time / 1e3:.1f} s of one core's time, and each look at the store {store / 1e3:.1f} s or "
        f"more. A record as long as these, with {1e3 * size:.0f} bytes a worker, would reach the longest line of a run "
        f"file at {1e3 / size / 1e3:.1f} thousand workers."
    )


PARTS = {"measured": measured, "far": far}


if __name__ == "__main__":
    write(PAGE, PARTS)
