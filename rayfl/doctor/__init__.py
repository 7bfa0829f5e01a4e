"""``rayfl doctor``: whether this machine is fit for experiments, and what to mend.

Each check is a module of its name with ``check(request)``, which yields findings. It runs in a process of its
own (``rayfl.doctor.isolation``), so that none can crash, hang or litter the others.
"""
