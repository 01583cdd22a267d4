import torch
from gpt import GPT, PRESETS


def test_a_byte_is_predicted_from_the_past_alone():
    model = GPT(PRESETS["tiny"]).eval()
    inputs = torch.randint(256, (1, 32))
    changed = inputs.clone()
    changed[0, -1] = (changed[0, -1] + 1) % 256
    targets = torch.full((1, 32), -100)
    targets[0, :-1] = inputs[0, 1:]
    assert torch.equal(model(inputs, targets), model(changed, targets))


def test_before_training_every_byte_is_as_likely_as_any():
    torch.manual_seed(0)
    model = GPT(PRESETS["tiny"]).eval()
    loss = model(torch.randint(256, (8, 32)), torch.randint(256, (8, 32)))
    assert abs(float(loss.detach()) - 5.545) < 0.05  # ln 256


def test_the_largest_preset_has_the_size_of_gpt_2():
    with torch.device("meta"):
        model = GPT(PRESETS["gpt2"])
    assert round(sum(p.numel() for p in model.parameters()) / 1e6) == 124


def test_the_head_is_the_embedding():
    model = GPT(PRESETS["tiny"])
    assert model.head.weight is model.token.weight
