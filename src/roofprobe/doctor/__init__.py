"""Can hardware counters be read here, and are they right? If not: why, and who must do what.

``gather`` asks the machine and gives ``facts``; ``judge`` turns facts into findings and asks
nothing, so that facts of another machine are judged alike. Whatever may hang or crash (the driver,
CUDA, CUPTI, the work of known size) runs in ``child``, a process with a time limit.
"""
