"""One self-contained page about a run, and the same page while it is followed. Needs bokeh: `unisono[report]`."""
