"""Silent Inconsistency in Data-Parallel Full Fine-Tuning (arXiv 2602.14462): which faults do its measures show?"""
