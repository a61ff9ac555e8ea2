"""The live page's server: follows run files and answers a browser on this machine. It changes nothing anywhere."""

from unisono.pageserver.answers import Site
from unisono.pageserver.following import Followers, View
from unisono.pageserver.server import PageServer
from unisono.pageserver.shelf import Shelf

__all__ = ["Followers", "PageServer", "Shelf", "Site", "View"]
