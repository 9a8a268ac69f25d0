"""What separates the frames of a mixture: masks, or demixing in a room or a stereo image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, cast

from ondes.nmf.encoding import Compute
from ondes.nmf.penalties import ActivationPenalty
from ondes.separation.dictionary_masks import DictionaryMasks, learner_of
from ondes.separation.masked_frames import MaskedFrames, MaskStream
from ondes.separation.mixed_sources import AnyModels, MixedSources
from ondes.separation.sources import Models, Sources
from ondes.separation.unfolded_masks import TrainedModel, UnfoldedMaskStream
from ondes.signal.stft import Frames, Stft

__all__ = ["SPATIAL", "ImageStream", "image_stream"]

SPATIAL = ("none", "room", "pan")


class ImageStream(Protocol):
    """What each source contributes to each channel: `MaskedFrames`, `SpatialImages`."""

    names: tuple[str, ...]

    def reset(self) -> None:
        """Forget everything pushed so far."""

    def push(self, frames: Frames) -> Frames:
        """Take the next frames, (n, n_bins) or (n, n_channels, n_bins); return images.

        Those that are ready of all sources but the last, which is the rest of the mixture:
        (n_sources - 1, m, n_bins) or (n_sources - 1, m, n_channels, n_bins).
        """

    def flush(self) -> Frames:
        """Return the last images, and reset."""


def image_stream(
    models: AnyModels,
    sr: int | None,
    *,
    spatial: str,
    residual: str | None,
    adapt: Sequence[str],
    n_free: int,
    rest: str,
    penalty: ActivationPenalty | None,
    batch_size: int | None,
    random_state: int,
    compute: Compute,
) -> tuple[ImageStream, Stft, int]:
    """The stream of images, the mixture's STFT and the models' sampling rate; see `Separator`."""
    if spatial not in SPATIAL:
        raise ValueError(f"spatial={spatial!r} must be one of {', '.join(map(repr, SPATIAL))}.")
    if spatial != "none" and (residual is not None or penalty is not None):
        raise ValueError(f"spatial={spatial!r} takes neither residual nor penalty.")
    known = _resolved(models, spatial, n_free)
    is_trained = isinstance(known, TrainedModel)
    if is_trained and (residual is not None or adapt or n_free or penalty is not None):
        raise ValueError("A trained separator takes neither residual, adapt, n_free nor penalty.")
    sources = known.sources if isinstance(known, MixedSources) else known
    masks: MaskStream
    if isinstance(sources, TrainedModel):
        masks = UnfoldedMaskStream(sources, compute.n_threads)
    elif isinstance(sources, MaskStream):
        masks = sources
    else:
        masks = DictionaryMasks(
            sources,
            residual=residual,
            adapt=adapt,
            n_free=n_free,
            rest=rest,
            penalty=penalty,
            batch_size=batch_size,
            random_state=random_state,
            compute=compute,
        )
    names = masks.names
    if len(set(names)) < len(names):
        raise ValueError(f"Two sources have the same name among {names}; rename one.")
    stft = masks.stft if sr is None else masks.stft.at_rate(sr / masks.sr)
    stft.check_invertible()
    if spatial == "none":
        return MaskedFrames(masks, stft), stft, masks.sr
    from ondes.separation.spatial.stream import SpatialImages

    if not isinstance(known, (TrainedModel, Sources, MixedSources)):
        raise ValueError(f"spatial={spatial!r} needs dictionaries or a trained separator.")
    if isinstance(known, MixedSources) and set(adapt) & set(known.trained.names):
        raise ValueError(f"adapt={adapt!r}: the sources of a trained separator do not adapt.")
    learner = None
    if isinstance(sources, Sources):
        learner = learner_of(
            sources,
            adapt=adapt,
            n_free=n_free,
            rest=rest,
            random_state=random_state,
            compute=compute,
        )
    frames_per_second = masks.sr / masks.stft.hop_length
    images = SpatialImages(
        spatial,
        known,
        names,
        stft,
        frames_per_second,
        learner=learner,
        batch_size=batch_size,
    )
    return images, stft, masks.sr


def _resolved(
    models: AnyModels, spatial: str, n_free: int
) -> Sources | TrainedModel | MixedSources | MaskStream:
    """Models in whichever way they were given."""
    if isinstance(models, Mapping) and any(isinstance(m, TrainedModel) for m in models.values()):
        models = MixedSources.of(models)
    elif isinstance(models, TrainedModel) and n_free and spatial != "none":
        models = MixedSources.of({"separator": models})
    if isinstance(models, MixedSources) and spatial == "none":
        raise ValueError(
            "A trained separator and dictionaries together need spatial='room' or 'pan' "
            "(--spatial); without it, give only one of the two."
        )
    if isinstance(models, (TrainedModel, MixedSources, MaskStream)):
        return models
    return Sources.of(cast(Models, models))
