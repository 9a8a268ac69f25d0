"""Training on many machines: the rounds of one run, computed by the workers of a Dask cluster."""

from ondes.cluster.engine import Engine, InProcess
from ondes.cluster.plan import Plan, first_round, shard_size
from ondes.cluster.source import ClusterSource

__all__ = ["ClusterSource", "Engine", "InProcess", "Plan", "first_round", "shard_size"]
