"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let charts = null, views = [], structure = "", extent = [0, 1], readings = [], version = "", following = "", moved = false;

  async function draw(drawn) {
    const seen = charts && looked();
    for (const view of views) view.clear();
    if (charts) Bokeh.documents.splice(Bokeh.documents.indexOf(charts), 1);
    views = await Bokeh.embed.embed_items(drawn.docs, drawn.items);
    charts = Bokeh.documents[Bokeh.documents.length - 1];
    structure = drawn.structure;
    paint(dark.matches);
    note(drawn);
    choose(drawn.reading);
    if (seen) look(seen);
    for (const chart of document.querySelectorAll(".chart")) leaveOut(chart);
    document.body.dataset.ready = "true";
  }

  // Charts cannot be worked with a keyboard, so they are no stop on its way; their numbers are in the tables.
  function leaveOut(element) {
    for (const one of [element, ...element.querySelectorAll("*")]) {
      if (one.hasAttribute("tabindex")) one.tabIndex = -1;
      if (one.shadowRoot) for (const child of one.shadowRoot.children) leaveOut(child);
    }
  }

  // Where the reader is: the zoom and the reading, unless they are the usual ones.
  function looked() {
    const steps = charts.get_model_by_name("steps"), place = Number(byId("reading")?.value);
    const zoomed = steps.start > extent[0] || steps.end < extent[1];
    return { range: zoomed ? [steps.start, steps.end] : null, reading: moved ? readings[place] : null };
  }

  function look(seen) {
    if (seen.range) show(...seen.range);
    if (seen.reading !== null) choose(after(seen.reading));
  }

  function patch(drawn) {
    const seen = looked();
    if (readings.length) choose(0); // the place may not be there any more
    charts.apply_json_patch({ events: drawn.events });
    note(drawn);
    show(...extent);
    choose(drawn.reading);
    look(seen);
  }

  function note(drawn) {
    extent = drawn.steps;
    readings = drawn.readings ?? [];
    if (!byId("reading")) return;
    byId("reading").max = Math.max(0, readings.length - 1);
    byId("choose").hidden = !readings.length;
    byId("no-readings").hidden = readings.length > 0;
  }

  function choose(place) {
    if (!readings.length) return;
    place = Math.min(place, readings.length - 1);
    byId("reading").value = place;
    byId("reading-step").textContent = "step " + readings[place].toLocaleString("en");
    for (const name of ["matrix", "layers-cos", "layers-norm"]) {
      const filter = charts.get_model_by_name("chosen-" + name);
      if (filter) filter.indices = [place];
    }
  }

  function after(step) {
    const place = readings.findIndex((one) => one >= step);
    return place < 0 ? readings.length - 1 : place;
  }

  function show(start, end) {
    const steps = charts.get_model_by_name("steps");
    steps.start = start;
    steps.end = end;
  }

  function mark(first, last) {
    for (const figure of charts.roots()) {
      const span = charts.get_model_by_name("span-" + figure.name);
      if (span) span.setv({ left: first - 0.5, right: last + 0.5, visible: last >= first });
    }
  }

  function jump(button) {
    const first = Number(button.dataset.first), last = Number(button.dataset.last);
    const margin = Math.max(5, 0.2 * (last - first));
    const start = Math.max(extent[0], first - margin), end = Math.min(extent[1], last + margin);
    show(...(start < end ? [start, end] : extent)); // a restart may have gone back to before it
    mark(first, last);
    moved = true;
    choose(after(first));
    byId("charts").scrollIntoView({ behavior: "smooth" });
    byId("status").textContent = "The charts show steps " + first + " to " + last + ".";
  }

  function paint(isDark) {
    if (!charts) return;
    const ink = isDark ? "#9aa1ab" : "#3c424b", line = isDark ? "#5a626d" : "#b6bbc2";
    for (const figure of charts.roots()) {
      for (const axis of [...figure.left, ...figure.below])
        axis.setv({ major_label_text_color: ink, axis_label_text_color: ink, axis_line_color: line, major_tick_line_color: line });
      for (const grid of figure.center) if ("grid_line_color" in grid) grid.grid_line_color = line;
    }
  }

  function fill(slots) {
    for (const [name, html] of Object.entries(slots)) {
      const slot = byId(name);
      if (!slot || slot.dataset.html === html) continue;
      const open = [...slot.querySelectorAll("details")].map((one) => one.open);
      slot.innerHTML = html;
      slot.dataset.html = html;
      [...slot.querySelectorAll("details")].forEach((one, place) => (one.open = Boolean(open[place])));
    }
  }

  async function follow(address) {
    try {
      const answer = await fetch(address + "?have=" + structure + "&version=" + version, { cache: "no-store" });
      if (answer.status === 200) {
        const state = await answer.json();
        fill(state.slots);
        if (state.drawn && state.drawn.docs) await draw(state.drawn);
        else if (state.drawn) patch(state.drawn);
        version = state.version ?? "";
        document.title = state.title;
        const unread = state.following.unreadable;
        following = state.following.text + (unread ? "; lines that could not be read: " + unread : "");
      } else if (answer.status !== 204 && answer.status !== 304) throw new Error(answer.statusText);
      byId("following").textContent = following;
    } catch (error) {
      structure = version = ""; // whatever went wrong, the next answer holds everything
      byId("following").textContent = "no word from unisono live; trying again";
      console.info(error);
    }
    setTimeout(follow, document.hidden ? 5000 : 1000, address);
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest(".jump");
    if (button && charts) jump(button);
  });
  byId("all-steps").addEventListener("click", () => { show(...extent); mark(0, -1); });
  byId("reading")?.addEventListener("input", (event) => {
    moved = true;
    choose(Number(event.target.value));
  });
  dark.addEventListener("change", () => paint(dark.matches));
  addEventListener("beforeprint", () => {
    document.documentElement.classList.add("printing");
    for (const one of document.querySelectorAll(".finding details")) one.open = true;
    paint(false);
  });
  addEventListener("afterprint", () => {
    document.documentElement.classList.remove("printing");
    paint(dark.matches);
  });

  const data = byId("data");
  if (data) draw(JSON.parse(data.textContent));
  else follow(document.body.dataset.state);
})();
