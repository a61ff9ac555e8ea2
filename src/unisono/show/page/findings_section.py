"""The verdict, the headline numbers and the findings, as HTML."""

from __future__ import annotations

from unisono.records.finding import Finding
from unisono.show.analysis.checkup import count
from unisono.show.analysis.lost_work import spoken_time
from unisono.show.page.html import Html, code_in, definitions, details, table, text
from unisono.show.page.page_model import PageModel
from unisono.show.text.findings import asides, spoken_ranks, spoken_steps

LIKELY, POSSIBLE = 0.5, 0.2
USELESS = ("UN404", "UN501")


def verdict(page_model: PageModel) -> Html:
    checkup = page_model.checkup()
    leading = next((finding for finding in checkup.findings if finding.at_least("warning")), None)
    named = f"<p>{text(leading.title)}{_on(leading)}.</p>" if leading is not None else ""
    said = f'<p class="large">{text(sentence(checkup.verdict_text))}</p>'
    return f'<div class="verdict {text(checkup.verdict)}">{said}{named}</div>'


def headlines(page_model: PageModel) -> Html:
    cards = "".join(
        f'<div class="card"><p class="name">{text(name)}</p>'
        f'<p class="large">{text(value)}</p><p>{text(words)}</p></div>'
        for name, value, words in (_effective(page_model), _lost(page_model), _steps(page_model), _cost(page_model))
    )
    return f'<div class="cards">{cards}</div>'


def findings(page_model: PageModel) -> Html:
    checkup = page_model.checkup()
    remarks = "".join(f"<p>{text(sentence(remark))}</p>" for remark in asides(checkup))
    if not checkup.findings:
        return f"<p>Nothing was found.</p>{remarks}"
    return "".join(_finding(finding, page_model) for finding in checkup.findings) + remarks


def _on(finding: Finding) -> Html:
    ranks = spoken_ranks(finding)
    return f", {text(ranks)}, {text(spoken_steps(finding))}" if ranks else f", {text(spoken_steps(finding))}"


def sentence(words: str) -> str:
    return words[:1].upper() + words[1:] + "."


def _finding(finding: Finding, page_model: PageModel) -> Html:
    last = page_model.last_step_of(finding)
    jump = (
        f'<button type="button" class="jump" data-first="{finding.first_step}" data-last="{last}">'
        f'Show in the charts<span class="hidden"> {text(finding.code)}</span></button>'
    )
    facts = [("Why", code_in(finding.why))]
    if finding.remedies:
        facts.append(("Next", _remedies(finding)))
    if finding.where:
        facts.append(("Where", text(", ".join(dict.fromkeys(finding.where)))))
    if "symptoms" in finding.evidence:
        facts.append(("Also", f"seen, and probably caused by this: {text(finding.evidence['symptoms'])}"))
    state = finding.severity if finding.state == "open" else f"{finding.severity}, resolved"
    return (
        f'<article class="finding {text(finding.severity)} {text(finding.state)}" id="finding-{text(finding.code)}">'
        f"<h3>{text(finding.code)} <span>{text(finding.title)}</span></h3>"
        f'<p class="meta"><strong>{text(state)}</strong>{_on(finding)}</p>'
        f"{definitions(facts)}{details('Evidence and causes', _evidence(finding))}{jump}</article>"
    )


def _remedies(finding: Finding) -> Html:
    return "<ul>" + "".join(f"<li>{code_in(remedy)}</li>" for remedy in finding.remedies) + "</ul>"


def _evidence(finding: Finding) -> Html:
    rows = [[name.replace("_", " "), _number(value)] for name, value in finding.evidence.items() if name != "symptoms"]
    causes = "".join(f"<li>{_chance(cause.confidence)}: {code_in(cause.text)}</li>" for cause in finding.causes)
    pattern = f"<p>In the manuals: {text(finding.pattern)}.</p>" if finding.pattern else ""
    return table(("evidence", "value"), rows, f"Evidence for {finding.code}") + f"<ul>{causes}</ul>{pattern}"


def _chance(confidence: float) -> str:
    return "likely" if confidence >= LIKELY else "possible" if confidence >= POSSIBLE else "less likely"


def _number(value: float | int | str) -> str:
    return f"{value:.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else value


def _effective(page_model: PageModel) -> tuple[str, str, str]:
    name, workers = "Effective workers", page_model.timeline.workers
    copied = any(one.code == "UN101" and one.state == "open" for one in page_model.checkup().findings)
    if copied and page_model.times.copies < workers:
        words = f"{count(page_model.times.copies, 'worker')} repeated another's batch"
        return name, f"{workers - page_model.times.copies} of {workers}", words
    astray = _astray(page_model)
    if astray:
        return (
            name,
            f"at most {workers - len(astray.ranks)} of {workers}",
            f"{spoken_ranks(astray)} does not help ({astray.code})",
        )
    line = page_model.timeline.line("effective_workers")
    if line.is_empty:
        return name, "-", "no gradients of two or more workers were heard"
    found = page_model.outlook()
    worth = float(line.finite().mean_T[-1]) if found is None else found.effective_workers(workers).value
    words = f"a step of all is worth {worth:.2g} steps of one worker alone"
    doubtful = page_model.checkup().verdict == "critical"
    return name, f"{worth:.2g} of {workers}", words + "; measured with a fault in the run" * doubtful


def _astray(page_model: PageModel) -> Finding | None:
    """A finding that names workers whose gradients are of no use."""
    found = (one for one in page_model.checkup().findings if one.code in USELESS and one.state == "open" and one.ranks)
    return next((one for one in found if one.severity == "critical"), None)


def _lost(page_model: PageModel) -> tuple[str, str, str]:
    losses = page_model.losses()
    if not losses:
        return "Lost to a fault", "nothing", "as far as anything was found"
    worst = max(losses, key=lambda loss: (loss.worker_seconds or 0.0) * (1.0 if loss.share is None else loss.share))
    since = f"since step {worst.first_step:,} ({worst.code}): {worst.words}"
    if worst.worker_seconds is None:
        return "Lost to a fault", "unknown", since
    lost = worst.worker_seconds * (1.0 if worst.share is None else worst.share)
    up_to = "up to " if worst.share is None else ""
    return "Lost to a fault", f"{up_to}{spoken_time(lost)}", since


def _steps(page_model: PageModel) -> tuple[str, str, str]:
    checkup = page_model.checkup()
    words = f"of {count(checkup.workers, 'worker')}; gradients heard at {page_model.heard:,} of them"
    return "Steps recorded", f"{checkup.steps:,}", words


def _cost(page_model: PageModel) -> tuple[str, str, str]:
    cost = page_model.listening_cost
    value = "-" if cost is None else f"{100 * cost:.2g} %"
    return "Cost of listening", value, "of the training thread's time, on the slowest worker"
