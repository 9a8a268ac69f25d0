"""Training on many machines: the rounds of one run, computed by the workers of a Dask cluster."""

from ondes.cluster.plan import Plan, first_round, schedule_sizes, shard_size
from ondes.cluster.source import ClusterSource, open_engine

__all__ = ["ClusterSource", "Plan", "first_round", "open_engine", "schedule_sizes", "shard_size"]
