"""The live page's server: follows run files and answers a browser on this machine. It changes nothing anywhere."""

from unisono.show.live_server.live_runs import FollowedRun, Followers
from unisono.show.live_server.routes import Site
from unisono.show.live_server.run_index import RunIndex
from unisono.show.live_server.server import PageServer

__all__ = ["FollowedRun", "Followers", "PageServer", "RunIndex", "Site"]
