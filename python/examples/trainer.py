"""Fine-tunes a transformers model on a text file with transformers' Trainer and our optimizer.

    python trainer.py MODEL TEXT [STEPS]      MODEL is a folder, or a name on Hugging Face

On a card, AdamW's state and the fp32 master copy of the weights are in pinned memory. A run that was stopped continues
from its last checkpoint in trained/.
"""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

import hybrid_train

name, text, steps = sys.argv[1], Path(sys.argv[2]).read_text(), int((sys.argv[3:] or [100])[0])
dtype = torch.bfloat16 if torch.cuda.is_available() else torch.float32
model = AutoModelForCausalLM.from_pretrained(name, dtype=dtype)
ids = torch.tensor(AutoTokenizer.from_pretrained(name)(text)["input_ids"])
length = min(512, len(ids))
data = [{"input_ids": row, "labels": row} for row in ids[: len(ids) // length * length].view(-1, length)]

optimizer = hybrid_train.Optimizer(model.named_parameters(), lr=2e-5, optim_place="pinned", master_place="pinned")
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, steps)
settings = TrainingArguments("trained", max_steps=steps, per_device_train_batch_size=1, save_steps=50, report_to=[])
trainer = Trainer(model, settings, train_dataset=data, optimizers=(optimizer, scheduler))
trainer.train(resume_from_checkpoint=get_last_checkpoint("trained") if Path("trained").is_dir() else None)
trainer.save_model("trained")
print(optimizer, "loss", next(h["train_loss"] for h in reversed(trainer.state.log_history) if "train_loss" in h))
