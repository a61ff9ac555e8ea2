"""Writes the tables of docs/steering.md from the evidence beside this file.

python docs/evidence/steering.py
"""

from pathlib import Path

from marked import load, table, write

PAGE = Path(__file__).parents[1] / "steering.md"


VARIANTS = {
    "sequential, as published": "as published",
    "largest mutually agreeing group": "largest group",
    "most neighbours": "most neighbours",
    "sum of the others, one by one (chosen)": "**`AgreementFilter`**",
    "the same, adaptive": "`AdaptiveFilter`",
    "plain mean": "plain mean",
}


def variants():
    """Alignment of the update, as a share of the best, and the bad workers kept."""
    body = []
    for row in load("agreement_variants.json")["rows"]:
        found, bad = row["variants"], row["bad"]
        if (row["common"] < 0.05 and row["fault"] not in ("none", "flipped")) or (row["workers"] == 8 and bad == 1):
            continue
        best = found["only the healthy"]["alignment"]
        cells = [
            f"{found[name]['alignment'] / best:.2f}" + (f" ({found[name]['bad_kept']:.0%})" if bad else "")
            for name in VARIANTS
        ]
        body.append([f"{row['workers']}, " + (f"{bad} {row['fault']}" if bad else "no fault"), row["common"], *cells])
    return table(["workers", "common", *VARIANTS.values()], body)


def effect():
    rows = load("steering_effect.json")["rows"]
    body = [
        [
            row["setting"],
            row["fault"],
            f"`{row['weighting']}`" if "(" in row["weighting"] else row["weighting"],
            f"{row['loss']:.3f}",
            f"{row['healthy_cosine']:.2f}",
            "" if row["fault"] == "none" else f"{row['bad_kept']:.0%}",
            f"{row['healthy_kept']:.0%}",
            f"{row['skipped']:.0%}",
        ]
        for row in rows
        if (row["fault"], row["weighting"]) != ("none", "left out by hand")
    ]
    head = ["setting", "last rank", "weighting", "loss", "healthy cosine", "bad kept", "healthy kept", "skipped"]
    return table(head, body)


def flips():
    result = load("decision_flips.json")
    shares = {
        (r["max_distance"], r["order"], r["sketch"]): r["share"] for r in result["share_of_decisions_that_differ"]
    }
    keys = dict.fromkeys((limit, order) for limit, order, _ in shares)
    body = [
        [limit, order, *(f"{shares[limit, order, length]:.1%}" for length in (65_536, 1_024))] for limit, order in keys
    ]
    first, last = result["mean_cosine_first_and_last_quarter"]
    note = f"{result['steps']} steps; mean cosine {first:.2f} in the first quarter, {last:.2f} in the last."
    return table(["`max_distance`", "`order`", "sketch of 65,536 (used)", "of 1,024"], body) + f"\n\n{note}"


def cost():
    files = {
        "4 processes, CPU": "steering_cost_4.json",
        "2 processes, CPU": "steering_cost_2.json",
        "4 processes sharing an H200, gloo": "steering_cost_gpu.json",
    }
    results = {name: load(file) for name, file in files.items()}
    names = list(next(iter(results.values()))["ratio"])
    body = [
        [name, *(f"{one['ratio'][name]:.3f} ({one['milliseconds'][name]:.0f} ms)" for one in results.values())]
        for name in names
    ]
    return table(["", *results], body)


def micro():
    body = []
    for device, file in (("CPU, one thread", "microbatch_cost.json"), ("H200", "microbatch_cost_gpu.json")):
        result = load(file)
        for one in result["results"]:
            added = one["added_seconds"]
            cells = [f"{1000 * seconds:+.1f} ms ({seconds / added['package']:.2f})" for seconds in added.values()]
            body.append([device, one["micro_batches"], f"{1000 * one['bare_seconds']:.0f} ms", *cells])
        memory = [f"{held:.1f}" for held in result["memory_in_gradients"].values()]
        body.append([f"{device}, memory of 8 in gradients", "8", *memory])
    return table(["", "micro-batches", "plain accumulation", *result["results"][0]["added_seconds"]], body)


PARTS = {"variants": variants, "effect": effect, "flips": flips, "cost": cost, "micro": micro}


if __name__ == "__main__":
    write(PAGE, PARTS)
