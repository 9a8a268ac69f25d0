"""
How many components have these counts?
======================================

Counts of seven hidden programs, as those of genes in cells, with totals that differ from row to
row. The number of programs is chosen by entries that are held out.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy.sparse import csr_array

import ondes

rng = np.random.default_rng(0)
programs = rng.dirichlet(np.full(120, 0.1), size=7)
usage = rng.dirichlet(np.full(7, 0.3), size=800)
totals = rng.lognormal(5, 0.5, size=(800, 1))
counts = csr_array(rng.poisson(totals * (usage @ programs)))

choice = ondes.choose_components(counts, beta_loss="kullback-leibler")
print(choice)

# %%
# Left: rows and columns that were not learned from are described best with seven components. Bars
# are standard errors over four draws of what is held out; the smallest number within one of them of
# the best is taken. Right: the divergence of the rows that were learned from only ever falls, so it
# says nothing about the number.

divergences = [
    -ondes.OnlineNMF(int(k), beta_loss="kullback-leibler", random_state=0).fit(counts).score(counts)
    for k in choice.candidates
]
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
choice.plot(left)
right.plot(choice.candidates, divergences, ".-")
right.set(xlabel="components", ylabel="divergence of all entries")

# %%
# Learned with that number, each program is found: its correlation with the one that is most alike.

model = ondes.OnlineNMF("auto", beta_loss="kullback-leibler", random_state=0).fit(counts)
print(model.choice_.n_components)
both = np.corrcoef(programs, model.components_)[:7, 7:]
print(both.max(axis=1).round(2))
