"""Writes the figures of docs/guard.md from the evidence beside this file.

python docs/evidence/guard.py
"""

from pathlib import Path

from marked import load, write

PAGE = Path(__file__).parents[1] / "guard.md"


def healthy():
    found = load("guard_on_healthy.json")
    return (
        f"**On healthy runs** it stays still: {found['actions']} actions in {found['steps']:,} steps of "
        f"{found['settings']} settings of the [detection benchmark](detection.md) with 2, 4 and 8 workers "
        f"(`{found['command']}`). The largest norm was {found['norm_ratio']:g} times the end of its usual range (limit "
        f"{found['norm_ratio_limit']:g}), {found['norm_ratio_with_losses']:g} times while losses rose (limit "
        f"{found['norm_ratio_with_losses_limit']:g}); the largest loss score {found['loss_score']:g} (limit "
        f"{found['loss_score_limit']:g}), and {found['loss_score_of_most']:g} that of most workers while the norm was "
        f"beyond {found['norm_ratio_limit']:g}."
    )


def gpu():
    found = load("guard_gpu.json")
    cost = {name: f"{milliseconds:.1f} ms" for name, milliseconds in found["cost"].items()}
    ratio = found["cost"]["guarded"] / found["cost"]["listening"]
    return (
        f"Seen on one {found['device']} with torch {found['torch']} (`{found['command']}`; one rank, "
        f"{found['model']}): "
        f"{cost['alone']} a step alone, {cost['listening']} listened to, {cost['guarded']} guarded ({ratio:.3f} times "
        f"listening), and no synchronisation. With an AdamW that is not fused, {cost['not fused alone']} alone and "
        f"{cost['not fused guarded']} guarded. Several GPUs with NCCL were not at hand: the same code was tested with "
        "gloo on CPUs."
    )


PARTS = {"healthy": healthy, "gpu": gpu}


if __name__ == "__main__":
    write(PAGE, PARTS)
