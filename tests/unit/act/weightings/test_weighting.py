"""What wrappers show to the weighting that they are put around.

W = workers, N = numbers in a gradient.
"""

import pytest
import torch

from unisono.weightings import AgreementFilter, Mean, NormAware, Preconditioned, Weighting, Windowed


def gradients(workers, elements=200, common=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(workers, elements, generator=generator) + common * torch.randn(elements, generator=generator)


def gram_of(gradient_WN):
    return gradient_WN @ gradient_WN.T


def test_lengths_count_and_the_matrix_stays_one_of_inner_products():
    for seed in range(300):
        lengths_W1 = 10 ** torch.empty(6, 1).uniform_(-3, 3, generator=torch.Generator().manual_seed(seed))
        gradient_WN = (gradients(6, 1 + seed % 8, seed=seed) * lengths_W1).double()
        gradient_WN[seed % 6] *= seed % 3
        seen = Seen()
        NormAware(seen)(gram_of(gradient_WN))
        torch.testing.assert_close(seen.gram_WW, seen.gram_WW.T)
        assert torch.equal(seen.gram_WW.diagonal(), gram_of(gradient_WN).diagonal())
        length_W = seen.gram_WW.diagonal().clamp(min=1e-300).sqrt()
        assert float(torch.linalg.eigvalsh(seen.gram_WW / length_W[:, None] / length_W).min()) > -1e-9


class Seen(Weighting):
    def __call__(self, gram_WW):
        self.gram_WW = gram_WW
        return torch.zeros(len(gram_WW))


def test_a_much_longer_gradient_agrees_less_only_where_lengths_count():
    gradient_WN = gradients(4, common=2.0)
    gradient_WN[2] *= 10
    assert (AgreementFilter(0.6)(gram_of(gradient_WN)) > 0).all()
    assert (NormAware(AgreementFilter(0.6))(gram_of(gradient_WN)) > 0).tolist() == [True, True, False, True]
    seen = Seen()
    NormAware(seen)(torch.tensor([[1.0, 5.0], [5.0, 100.0]]))
    assert seen.gram_WW.tolist() == [[1.0, 0.5], [0.5, 100.0]]


def test_equal_lengths_make_no_difference():
    gradient_WN = torch.nn.functional.normalize(gradients(5))
    seen = Seen()
    NormAware(seen)(gram_of(gradient_WN))
    torch.testing.assert_close(seen.gram_WW, gram_of(gradient_WN))


def test_wrappers_tell_how_the_matrix_is_to_be_taken():
    plain = AgreementFilter()
    assert (plain.window, plain.damping) == (1, None)
    assert (Windowed(plain).window, Windowed(plain, steps=8).damping) == (32, None)
    both = NormAware(Windowed(Preconditioned(plain, relative=0.3), steps=8))
    assert (both.window, both.damping) == (8, 0.3)


@pytest.mark.parametrize("wrap", [Windowed, Preconditioned])
def test_wrappers_pass_on_what_the_wrapped_one_says(wrap):
    gram_WW = gram_of(gradients(4, common=0.3))
    assert torch.equal(wrap(AgreementFilter(0.9))(gram_WW), AgreementFilter(0.9)(gram_WW))


@pytest.mark.parametrize("steps", [1, 0, -3])
def test_a_window_of_one_step_is_refused(steps):
    with pytest.raises(
        ValueError, match=rf"`steps` of a window should be a whole number from 2 up\. Found `{steps}`\. Try 32"
    ):
        Windowed(Mean(), steps=steps)
