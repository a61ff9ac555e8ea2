from threads import one_thread  # noqa: F401 (a fixture for all tests of this folder)
