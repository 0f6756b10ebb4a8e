"""50 steps of a tiny model in transformers' Trainer and TRL's SFTTrainer: our optimizer against torch's AdamW.

    python check_trainers.py     PYTHONPATH names the package hybrid_train

Exits with 77 if transformers, accelerate or TRL is missing.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ.update(CUDA_VISIBLE_DEVICES="", HF_HUB_OFFLINE="1", TQDM_DISABLE="1")
try:
    import torch
    import accelerate  # noqa: F401
    from datasets import Dataset
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Trainer, TrainingArguments
    from trl import SFTConfig, SFTTrainer
except ImportError as error:
    print(f"left out: {error}")
    sys.exit(77)
import hybrid_train

MOST = 1e-5
EXAMPLE = Path(__file__).resolve().parents[2] / "python" / "examples" / "trainer.py"
WORDS = "one two three four five six seven eight nine ten and or not the a".split()


def model_and(kind):
    torch.manual_seed(0)
    config = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=64, num_key_value_heads=2, max_position_embeddings=64, **config))
    optimizer = kind(model.parameters(), lr=1e-3, weight_decay=0.0)
    return model, (optimizer, torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 50))


def settings(folder):
    return dict(
        output_dir=folder, max_steps=50, per_device_train_batch_size=4, logging_steps=1, save_steps=25, report_to=[],
        use_cpu=True, bf16=False, disable_tqdm=True, max_grad_norm=1.0,
    )  # fmt: skip


def losses_of(trainer, resume=None):
    trainer.train(resume_from_checkpoint=resume)
    return [line["loss"] for line in trainer.state.log_history if "loss" in line]


def with_trainer(kind, folder, resume=None):
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 64, (400, 16), generator=generator)
    data = [{"input_ids": one, "labels": one.clone()} for one in tokens]
    model, optimizers = model_and(kind)
    trainer = Trainer(model, TrainingArguments(**settings(folder)), train_dataset=data, optimizers=optimizers)
    return losses_of(trainer, resume), model


def word_tokenizer():
    words = {word: i for i, word in enumerate(["<pad>", "<eos>", "<unk>", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    names = dict(pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def with_sft(kind, folder):
    texts = [" ".join(WORDS[(i * k) % len(WORDS)] for k in range(1, 13)) for i in range(1, 301)]
    model, optimizers = model_and(kind)
    trainer = SFTTrainer(
        model=model, args=SFTConfig(max_length=32, **settings(folder)),
        train_dataset=Dataset.from_dict({"text": texts}), processing_class=word_tokenizer(), optimizers=optimizers,
    )  # fmt: skip
    return losses_of(trainer), model


def says(name, is_well):
    print(f"{'ok   ' if is_well else 'FAIL '} {name}")
    return not is_well


def example_fails(folder):
    """The example trains a model folder, and continues."""
    model, _ = model_and(torch.optim.AdamW)
    model.save_pretrained(f"{folder}/model")
    word_tokenizer().save_pretrained(f"{folder}/model")
    Path(folder, "text.txt").write_text(" ".join(WORDS) * 200)
    for steps in (51, 60):
        command = [sys.executable, str(EXAMPLE), "model", "text.txt", str(steps)]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        if done.returncode != 0 or "hybrid_train.Optimizer(adamw, 21 parameters" not in done.stdout:
            print(done.stdout, done.stderr)
            return True
    return not Path(folder, "trained", "model.safetensors").exists()


def main():
    logging.disable(logging.WARNING)
    folder, failed = tempfile.mkdtemp(prefix="hybrid-trainers-"), 0
    for name, run in (("Trainer", with_trainer), ("SFTTrainer", with_sft)):
        ours, model = run(hybrid_train.Optimizer, f"{folder}/{name}")
        theirs, _ = run(torch.optim.AdamW, f"{folder}/theirs-{name}")
        far = max(abs(a - b) for a, b in zip(ours, theirs))
        is_near = len(ours) == len(theirs) == 50 and far <= MOST
        failed += says(f"{name}: 50 losses differ by at most {far:.1e} (limit {MOST})", is_near)
        if run is with_trainer:
            _, again = run(hybrid_train.Optimizer, f"{folder}/{name}", f"{folder}/{name}/checkpoint-25")
            is_same = all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters()))
            failed += says("Trainer: a resumed run has the same bits", is_same)
    failed += says("the example trains and continues", not example_fails(folder))
    shutil.rmtree(folder, ignore_errors=True)
    return failed


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
