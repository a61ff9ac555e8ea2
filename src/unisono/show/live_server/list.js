// Asks every few seconds whether the list has changed, and exchanges it without loading the page anew.
"use strict";

const SECONDS = 3;
const trouble = document.getElementById("trouble");
let tag = "";

async function look() {
  const answer = await fetch("/", { headers: tag ? { "If-None-Match": tag } : {} });
  trouble.textContent = "";
  if (answer.status !== 200) return;
  tag = answer.headers.get("ETag") ?? "";
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("runs");
  // The folder turned out to be a run: its page stands in the place of the list.
  if (!fresh) return location.reload();
  const shown = document.getElementById("runs");
  if (fresh.innerHTML === shown.innerHTML) return;
  const focused = document.activeElement?.getAttribute("href");
  shown.replaceWith(fresh);
  if (focused) fresh.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus();
}

async function lookAgain() {
  try {
    if (!document.hidden) await look();
  } catch {
    trouble.textContent = "unisono does not answer. Is it still running?";
  }
  setTimeout(lookAgain, 1000 * SECONDS);
}

setTimeout(lookAgain, 1000 * SECONDS);
