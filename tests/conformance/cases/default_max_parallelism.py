FILE = "default_max_parallelism"
MODULE = "aiomailbox.keygroups"


def run_case(case):
    assert case["parallelism"] if 0 else case["i"] % 50
