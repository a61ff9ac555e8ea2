"""The tasks of the lab for one worker, written as one would without virtual workers. B = batch, T = places."""

import math

import torch
from torch.nn import functional

HEADS = 2


def clouds(weights, inputs, labels):
    hidden = functional.gelu(functional.linear(inputs, weights["first.weight"].T, weights["first.bias"][0]))
    hidden = functional.gelu(functional.linear(hidden, weights["second.weight"].T, weights["second.bias"][0]))
    return functional.cross_entropy(
        functional.linear(hidden, weights["head.weight"].T, weights["head.bias"][0]), labels
    )


def images(weights, inputs, labels):
    kernel = weights["patches.weight"].T.reshape(-1, 1, 3, 3)
    hidden = functional.gelu(functional.conv2d(inputs[:, None], kernel, weights["patches.bias"].flatten()))
    kernel = weights["mixer.weight"].T[..., None, None]
    hidden = functional.gelu(functional.conv2d(hidden, kernel, weights["mixer.bias"].flatten()))
    quarters = functional.avg_pool2d(hidden, 3).permute(0, 2, 3, 1).flatten(1)
    return functional.cross_entropy(
        functional.linear(quarters, weights["head.weight"].T, weights["head.bias"][0]), labels
    )


def texts(weights, words, targets, after=False):
    stream = weights["embedding.words"][words] + weights["embedding.places"]
    blocks = sorted({name.split(".")[0] for name in weights if name.startswith("block")})
    for block in blocks:
        for layer in (attention, widening):
            own = {name.split(".")[1]: one for name, one in weights.items() if name.startswith(f"{block}.")}
            stream = normal(stream + layer(own, stream)) if after else stream + layer(own, normal(stream))
    return functional.cross_entropy((normal(stream) @ weights["head.weight"]).flatten(0, 1), targets.flatten())


def deep_texts(weights, words, targets):
    return texts(weights, words, targets, after=True)


def normal(stream):
    mean, variance = stream.mean(-1, keepdim=True), stream.var(-1, keepdim=True, correction=0)
    return (stream - mean) / (variance + 1e-5).sqrt()


def attention(weights, stream):
    query, key, value = (stream @ weights["attention"]).chunk(3, -1)
    future = torch.ones(stream.shape[1], stream.shape[1]).triu(1).bool()
    heads = []
    for q, k, v in zip(query.chunk(HEADS, -1), key.chunk(HEADS, -1), value.chunk(HEADS, -1), strict=True):
        scores = q @ k.transpose(1, 2) / math.sqrt(q.shape[-1])
        heads.append(scores.masked_fill(future, -math.inf).softmax(-1) @ v)
    return torch.cat(heads, -1) @ weights["joined"]


def widening(weights, stream):
    return functional.gelu(stream @ weights["up"]) @ weights["down"]


LOSSES = {"clouds": clouds, "images": images, "texts": texts, "deep texts": deep_texts}
