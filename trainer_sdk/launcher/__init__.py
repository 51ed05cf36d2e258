"""Runs a job's processes on one machine: forks ranks from a process that has torch, restarts the dead, hosts the store.

Three kinds of processes: the supervisor (:mod:`~evenkeel.trainer_sdk.launcher.launcher`, may have threads), the zygote
(:mod:`~evenkeel.trainer_sdk.launcher.processes.zygote`, imports everything heavy once, has no threads and no CUDA,
forks), and its
children: the store's host and the ranks (:mod:`~evenkeel.trainer_sdk.launcher.processes.rank_process`).
"""
