"""The detection benchmark: which faults are found, how soon, and whom they are blamed on. Outside the package."""
