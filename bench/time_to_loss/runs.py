"""runs.py: makes single runs, ours and PyTorch's."""
import json
import os
import re
import shutil
import subprocess
import tempfile

from journal import Failure, last_lines


class Ours:
    """build/bench/gpu_loss with KEY=VALUE settings."""

    def __init__(self, program, log):
        self.program, self.log = program, log

    def call(self, options, settings):
        with open(self.log, "w", encoding="utf-8") as log:
            done = subprocess.run([self.program, *options, *settings], stdout=subprocess.PIPE, stderr=log,
                                  stdin=subprocess.DEVNULL, text=True)
        if done.returncode not in (0, 3):
            raise Failure(f"gpu_loss ended with code {done.returncode}:\n{last_lines(self.log)}\n"
                          f"  its settings: {' '.join(settings)}")
        return done

    def train(self, settings, evals):
        done = self.call(["--evals", str(evals)], settings)
        if done.returncode == 3:
            return {"diverged": True, "val_loss": None, "held_out": []}
        words = {"nan": "NaN", "inf": "Infinity"}
        text = re.sub(r"(?<=[ \[])-?(nan|inf)(?=[,}\]])", lambda found: words[found.group(1)], done.stdout)
        result = json.loads(text)
        result["tokens_per_second"] = result["steps"] * result["tokens_per_step"] / result["train_s"]
        kept = ("device", "val_loss", "train_loss", "steps", "spent", "tokens_per_step", "tokens_per_second",
                "created_s", "train_s", "held_out")
        return {"diverged": False, **{key: result[key] for key in kept}}


class Dumps:
    """What PyTorch needs to train our runs: a folder per seed, made when it is first wanted."""

    def __init__(self, ours, settings, steps):
        self.ours, self.settings, self.steps = ours, settings, steps
        self.folder, self.made = None, {}

    def of(self, seed):
        if self.folder is None:
            self.folder = tempfile.mkdtemp(prefix="time_to_loss-")
        if seed not in self.made:
            folder = os.path.join(self.folder, f"seed-{seed}")
            os.mkdir(folder)
            self.ours.call(["--only-dump", folder],
                           [*self.settings, f"seed={seed}", f"steps={self.steps}", "tune=off"])
            self.made[seed] = folder
        return self.made[seed]

    def remove(self):
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)


class Peer:
    """One process of torch_time_to_loss.py, which makes all runs of an arm."""

    def __init__(self, command, log):
        self.command, self.log, self.process = command, log, None

    def train(self, job):
        if self.process is None:
            with open(self.log, "w", encoding="utf-8") as log:
                self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                                stderr=log, text=True)
        try:
            self.process.stdin.write(json.dumps(job) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self.process.wait()
            raise Failure(f"PyTorch ended with code {self.process.returncode}:\n{last_lines(self.log)}")
        return json.loads(line)

    def kill(self):
        """Ends a run that nobody waits for any more."""
        if self.process:
            self.process.kill()

    def close(self):
        """Gives its memory on the card back."""
        if self.process:
            self.process.stdin.close()
            self.process.stdout.close()
            self.process.wait()
            self.process = None


def check_peer(python, script):
    """What PyTorch there is: a dict, or a sentence why there is none."""
    try:
        done = subprocess.run([python, script, "--check"], capture_output=True, text=True)
    except OSError as error:
        return f"{python}: {error.strerror}"
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["it ended without a word"])[-1]
    return json.loads(done.stdout)
