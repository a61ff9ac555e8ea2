"""Writes the figures of docs/performance.md from the evidence beside this file.

python docs/evidence/performance.py
"""

from pathlib import Path

from marked import load, write

PAGE = Path(__file__).parents[1] / "performance.md"
MILLION = 1_000_000


def reads():
    found = load("gpu_cost.json")["reads"]
    lines = [
        "| numbers | copy | `vector_norm` | norms and sketch | ratio to `vector_norm` | of the copy's speed | "
        "fingerprint |",
        "|---" * 7 + "|",
    ]
    for kind in ("float32", "bfloat16", "float16"):
        for row in found[f"buffers, torch.{kind}"]:
            times = row["milliseconds"]
            lines.append(
                f"| {row['elements']:,} {kind} | {times['copy']:.3f} ms | {times['vector_norm']:.3f} ms | "
                f"{times['ours in a reading']:.3f} ms | **{row['ours_in_a_reading_to_vector_norm']:.2f}** "
                f"({row['ours_to_vector_norm']:.2f}) | {100 * row['ours_in_a_reading_of_copy_speed']:.0f} % "
                f"({100 * row['ours_of_copy_speed']:.0f} %) | {times['fingerprint']:.3f} ms |"
            )
    lines += ["", "| all gradients at once | `get_total_norm` | norms and sketches | ratio |", "|---|---|---|---|"]
    lists = {
        "model, torch.bfloat16": "1.16-billion-parameter model, 183 tensors, bfloat16",
        "model, torch.float32": "the same, float32",
        "256 tensors of 4 Mi, torch.bfloat16": "256 tensors of 4,194,304, bfloat16",
    }
    for name, title in lists.items():
        row, times = found[name], found[name]["milliseconds"]
        lines.append(
            f"| {title} | {times['total_norm']:.3f} ms | {times['ours']:.3f} ms | **{row['ours_to_total_norm']:.2f}** |"
        )
    return "\n".join(lines)


def steps():
    cost = load("gpu_cost.json")
    lines = [
        "| 1.16 billion parameters, 8,192 tokens a step | a step alone | every step heard adds | "
        "default schedule adds |",
        "|---|---|---|---|",
    ]
    for view, title in ((False, "DDP as it is"), (True, "`gradient_as_bucket_view=True`")):
        row = cost["step"][f"gradient_as_bucket_view={view}"]
        alone = f"{row['milliseconds']['without unisono']:.1f} ms"
        lines.append(f"| {title} | {alone} | {_added(row, 'every step heard')} | {_added(row, 'default schedule')} |")
    kernels = cost["kernels"]["a step"]
    plain = cost["step"]["gradient_as_bucket_view=False"]
    own = kernels["milliseconds_of_kernels_that_only_unisono_launches"]
    lines += [
        "",
        f"In brackets the least and the most of five turns. The kernels of unisono themselves take {own:.2f} ms of a "
        f"heard step ({100 * own / plain['milliseconds']['without unisono']:.2f} %) in "
        f"{kernels['launches_of_those']:.0f} launches; the host spends {plain['reading_milliseconds']:.0f} ms on one, "
        "which a GPU that has enough to do does not notice. "
        f"The default schedule chose one step in {plain['interval']} in the first row. Peak memory on the GPU grew by "
        f"{plain['extra_bytes']['every step heard'] / 2**20:.1f} MiB.",
    ]
    return "\n".join(lines)


def _added(row, name):
    milliseconds, percent = row["added_milliseconds"][name], row["added_percent"][name]
    return (
        f"{milliseconds['median']:+.2f} ms ({milliseconds['least']:+.2f} to {milliseconds['most']:+.2f}), "
        f"{percent['median']:+.2f} %"
    )


def shared():
    found = load("gpu_cost.json")["shared"]["two ranks"]["found"]
    step, gpu = found["a step"], load("gpu.json")
    cases = len(gpu["equal"])
    return (
        f"Two gloo ranks that share the GPU ({found['parameters'] / 1e6:.0f} M parameters): a step takes "
        f"{step['milliseconds']['without unisono']:.0f} ms alone, and "
        f"{step['added_milliseconds']['every step heard']['median']:.1f} ms more when it is heard. There and with NCCL "
        f"on one rank weights stay bit-equal for both values of "
        f"`gradient_as_bucket_view`; so they do in {cases} further cases of two ranks, with norms within "
        f"{max(gpu[name]['norm'] for name in gpu if name.startswith('reference')):.0e} and cosines within "
        f"{max(gpu[name]['cosine'] for name in gpu if name.startswith('reference')):.0e} of those of full gradients "
        f"(`{gpu['command']}`)."
    )


def waits():
    found = [row for row in load("gpu_cost.json")["waits"].values() if isinstance(row, dict)]
    steps, heard = (sum(row[name] for row in found) for name in ("steps", "heard"))
    pinned, pageable = sum(row["pinned_copies"] for row in found), sum(len(row["pageable_copies"]) for row in found)
    errors = sum(len(row["errors_inside_unisono"]) for row in found)
    return (
        f'In {steps} steps under `torch.cuda.set_sync_debug_mode("error")`, {heard} of them heard: {errors} '
        f"synchronisations, {pinned} copies between host and GPU out of or into pinned memory, {pageable} of pageable "
        "memory, which would wait without being told so."
    )


def fold():
    found = load("sketch_speed.json")
    rows = {(row["dtype"], row["length"], row["threads"]): row for row in found["results"]}
    lines = [
        "| sketch length | float32 | bfloat16 | float32, two threads | bfloat16, two threads | in torch, float32 |",
        "|---" * 6 + "|",
    ]
    for length in (65_536, 16_384, 4_096):
        cells = [_best(rows[kind, length, threads]["fold"]) for threads in (1, 2) for kind in ("float32", "bfloat16")]
        in_torch = _best(rows["float32", length, 1]["fold in torch"])
        lines.append(f"| {length:,} | {' | '.join(cells)} | {in_torch} |")
    errors = [max(abs(row[name]) for row in found["results"]) for name in ("error_of_norm", "error_of_vector_norm")]
    lines += [
        "",
        f"Best (median) of {found['repeats']}. The squared norm from the same pass is off by at most "
        f"{errors[0]:.0e}, that of `vector_norm` by {errors[1]:.0e}.",
        "",
        f"```bash\n{found['command']}\n```",
    ]
    return "\n".join(lines)


def _best(ratio):
    return f"{ratio['best']:.2f} ({ratio['median']:.2f})"


def accuracy():
    found = load("sketch_accuracy.json")
    rows = {(row["network"], row["step"], row["stress"] != ""): row for row in found["results"]}
    lines = [
        "| network | step | cosine | exact norms | maximum likelihood | shifted to the exact mean | inflation |",
        "|---" * 7 + "|",
    ]
    for network, step in dict.fromkeys((row["network"], row["step"]) for row in found["results"]):
        pair = [rows[network, step, stressed] for stressed in (False, True)]
        names = ("rmse_exact_norms", "rmse_likeliest", "rmse_shifted")
        cells = [f"{pair[0][name]:.4f} ({pair[1][name]:.4f})" for name in names]
        cells.append(f"{pair[0]['inflation']:.2f} ({pair[1]['inflation']:.2f})")
        lines.append(f"| {network} | {step} | {pair[0]['mean_cosine']:.2f} | {' | '.join(cells)} |")
    mean = max(abs(row["error_of_mean_cosine"]) for row in found["results"])
    noise = max(abs(row["relative_error_of_noise_scale"]) for row in found["results"])
    lines += ["", f"The mean cosine weighted by norms was off by at most {mean:.0e}, the noise scale by {noise:.0e}."]
    return "\n".join(lines)


def diagnosis():
    found = load("diagnosis_speed.json")
    lines = ["| records | read | read and diagnosed |", "|---|---|---|"]
    for row in found["results"]:
        heard = "every step heard" if row["heard_every"] == 1 else f"every {row['heard_every']}th step heard"
        read = row["microseconds_parsing"] * row["records"] / 1e6
        lines.append(
            f"| {row['records']:,} of {row['workers']:,} workers, {heard} | {read:.1f} s | "
            f"{row['process_seconds']:.0f} s |"
        )
    return "\n".join(lines)


def unheard():
    found = load("unheard_cost.json")
    lines = [
        "| step without unisono | ratio with it (least to most) | listening thread, rank 0 | rank 1 |",
        "|---" * 4 + "|",
    ]
    for row in found["results"]:
        thread_W = row["listening_thread_milliseconds_W"]
        lines.append(
            f"| {row['milliseconds_without']:.1f} ms | {row['ratio']:.2f} ({row['ratios'][0]:.2f} to "
            f"{row['ratios'][-1]:.2f}) | {thread_W[0]:.2f} ms | {thread_W[1]:.2f} ms |"
        )
    return "\n".join([*lines, "", f"`{found['command']}`"])


PARTS = {
    "reads": reads,
    "steps": steps,
    "shared": shared,
    "waits": waits,
    "unheard": unheard,
    "fold": fold,
    "accuracy": accuracy,
    "diagnosis": diagnosis,
}


if __name__ == "__main__":
    write(PAGE, PARTS)
