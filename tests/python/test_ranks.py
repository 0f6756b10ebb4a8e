"""Several processes over one model, each a rank by the variables of torchrun."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import unittest

import hybrid_train as ht
from support import HERE, InFolder, needs_numpy

STEPS = 12
VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def started(count, *arguments):
    """As torchrun does it; (exit code, lines, errors) of each rank."""
    port, children = free_port(), []
    for rank in range(count):
        values = (rank, count, rank, count, "127.0.0.1", port)
        env = {**os.environ, **({n: str(v) for n, v in zip(VARIABLES, values)} if count > 1 else {})}
        command = [sys.executable, str(HERE / "ranked.py"), str(STEPS), *arguments]
        children.append(subprocess.Popen(command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
    out = [child.communicate(timeout=120) for child in children]
    return [(child.returncode, said.splitlines(), errors) for child, (said, errors) in zip(children, out)]


class Ranks(InFolder):
    @needs_numpy
    def test_two_ranks_train_what_one_does(self):
        (code, one, errors), *_ = started(1)
        self.assertEqual(code, 0, errors)
        ranks = started(2)
        for rank, (code, lines, errors) in enumerate(ranks):
            self.assertEqual(code, 0, errors)
            self.assertEqual(lines[:STEPS], ranks[0][1][:STEPS])
            who, count, _, bits = lines[-1].split()
            self.assertEqual((who, count), (str(rank), "2"))
            self.assertEqual(bits, ranks[0][1][-1].split()[3])
            for ours, theirs in zip(lines[:STEPS], one):
                self.assertAlmostEqual(float(ours), float(theirs), delta=1e-5 * float(theirs))
        asked = [int(lines[-1].split()[2]) for _, lines, _ in ranks]
        self.assertEqual(sum(asked), int(one[-1].split()[2]))
        self.assertNotEqual(asked[0], asked[1])

    @needs_numpy
    def test_an_exception_on_one_rank_stops_the_other(self):
        (code, _, errors), (other, _, raised) = started(2, "--fail-at", "7")
        self.assertEqual((code, other), (1, 1))
        self.assertIn("Stopped", errors)
        self.assertIn("rank 1 has had enough", raised)

    def test_a_process_that_nobody_has_started_is_alone(self):
        who = ht.find_rank()
        self.assertEqual((who.rank, who.count, who.launcher), (0, 1, ""))

    def test_ranks_are_planned_and_not_started(self):
        plan = ht.plan(model="nano", device="cpu", batch_size=4, ranks=4)
        self.assertEqual(plan["ranks"], 4)
        self.assertEqual(ht.plan(model="nano", device="cpu").get("ranks", 1), 1)
        own = ht.plan_parameters({"a": (512, 512), "b": (512,)}, device="cpu", ranks=2, zero_stage=1)
        self.assertEqual((own["ranks"], own["zero_stage"]), (2, 1))
        with self.assertRaisesRegex(ht.InputError, "accepted: 0 to 2"):
            ht.plan_parameters({"a": (512, 512)}, device="cpu", ranks=2, zero_stage=3)


if __name__ == "__main__":
    unittest.main()
