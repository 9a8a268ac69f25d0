"""
Topics of Python's own documentation
====================================

Word counts of a thousand docstrings, learned from as a sparse matrix.
"""

import inspect
import sys

import matplotlib.pyplot as plt
from sklearn.feature_extraction.text import CountVectorizer

import ondes

NAMES = """argparse ast asyncio calendar collections configparser csv datetime decimal email enum
fractions gzip hashlib heapq html http.client inspect io ipaddress itertools json locale logging
mailbox math multiprocessing operator os pathlib pickle random re sched shutil socket sqlite3 ssl
statistics string subprocess tarfile tempfile textwrap threading timeit tokenize typing unittest
urllib.request uuid wave weakref xml.dom.minidom zipfile zoneinfo"""

texts = set()
for name in NAMES.split():
    __import__(name)
    for _, item in inspect.getmembers(sys.modules[name]):
        members = inspect.getmembers(item) if inspect.isclass(item) else []
        for each in [item, *(member for _, member in members)]:
            text = inspect.getdoc(each)
            if text and len(text) > 150:
                texts.add(text)
counter = CountVectorizer(stop_words="english", token_pattern="[a-z]{3,}", min_df=5, max_df=0.2)
counts = counter.fit_transform(sorted(texts))
share = counts.nnz / counts.shape[0] / counts.shape[1]
print(f"{counts.shape[0]} docstrings, {counts.shape[1]} words, {share:.1%} of the counts not zero")

# %%
# Kullback-Leibler is the divergence of counts. The matrix stays sparse.

model = ondes.OnlineNMF(9, beta_loss="kullback-leibler", n_passes=60, random_state=0).fit(counts)
words = counter.get_feature_names_out()
figure, axes = plt.subplots(3, 3, figsize=(9, 7), layout="constrained")
for ax, topic in zip(axes.flat, model.components_, strict=True):
    top = topic.argsort()[-8:]
    ax.barh(words[top], topic[top])
    ax.set_xticks([])

# %%
# What a new text is about is its row of `transform`.

text = "Open the file for reading, and return the lines of the archive as bytes."
shares = model.transform(counter.transform([text]))[0]
print(", ".join(words[model.components_[shares.argmax()].argsort()[::-1][:6]]))
