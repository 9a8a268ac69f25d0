"""
In a scikit-learn pipeline
==========================

``OnlineNMF`` is a transformer: its activations are features for any classifier. Here single frames
are classified by instrument.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import ConfusionMatrixDisplay
from sklearn.model_selection import cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

import ondes
from ondes.demo_scene import make_scene

# %%
# One row per frame, and the instrument of each frame as its label. Silent frames are left out.

stft = ondes.Stft(n_fft=1024)
rows, labels, tunes = [], [], []
for tune in range(4):
    for name, stem in make_scene(6, random_state=tune).stems.items():
        frames = stft.power(stem)
        frames = frames[frames.mean(axis=1) > 1e-4 * frames.mean()]
        rows.append(frames)
        labels += [name] * len(frames)
        tunes += [tune] * len(frames)
X, y = np.concatenate(rows), np.array(labels)
print(X.shape, dict(zip(*np.unique(y, return_counts=True), strict=True)))

# %%
# Cross-validation by tune: no frame is classified by a model that was fitted to its tune.

pipeline = make_pipeline(
    ondes.OnlineNMF(16, n_passes=3, random_state=0),
    FunctionTransformer(np.log1p),
    StandardScaler(),
    LogisticRegression(max_iter=500),
)
predicted = cross_val_predict(
    pipeline,
    X,
    y,
    groups=tunes,
    cv=[
        (np.flatnonzero(np.array(tunes) != tune), np.flatnonzero(np.array(tunes) == tune))
        for tune in range(4)
    ],
)
print(f"{np.mean(predicted == y):.1%} of the frames are classified correctly")

figure, axes = plt.subplots(figsize=(5, 4), layout="constrained")
ConfusionMatrixDisplay.from_predictions(
    y, predicted, normalize="true", ax=axes, values_format=".2f"
)
plt.show()
