"""The live page's server: follows run files and answers a browser on this machine. It changes nothing anywhere."""

from unisono.show.live_server.live_runs import Followers, View
from unisono.show.live_server.routes import Site
from unisono.show.live_server.run_index import Shelf
from unisono.show.live_server.server import PageServer

__all__ = ["Followers", "PageServer", "Shelf", "Site", "View"]
