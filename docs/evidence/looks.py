"""How the pictures of experiments look, so that the same runs give the same file."""

LOOKS = {
    "svg.hashsalt": "unisono",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": "#222222",
}
SAVED = {"format": "svg", "facecolor": "white", "metadata": {"Date": None}, "bbox_inches": "tight"}
