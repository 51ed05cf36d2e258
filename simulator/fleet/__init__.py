"""Fleets that fail: discrete events over days, any strategy, the same cost model for all.

The truth (which device runs at which speed) is known to the simulation only. A strategy is asked when the detector has
noticed something and sees estimates. Between events the job runs at a constant rate, so days cost milliseconds.
Everything that comes from here is simulated, and is called so.
"""
