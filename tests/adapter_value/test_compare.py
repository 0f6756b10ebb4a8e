"""Figures of bench/adapter_value against numbers worked out by hand."""
import os
import sys
import unittest

BENCH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench")
sys.path[:0] = [os.path.join(BENCH, "adapter_value"), os.path.join(BENCH, "measurement")]
import compare  # noqa: E402


def ended(loss):
    return {"val_loss": loss, "diverged": loss is None}


def grid(*losses):
    return {10.0 ** i: loss and ended(loss) for i, loss in enumerate(losses)}


def chosen(**grids):
    arm = {"grid": {float(name[1:]): row for name, row in grids.items()}}
    compare.choose(arm)
    return arm


class Rates(unittest.TestCase):
    def test_the_best_rate_is_at_an_edge_of_the_whole_grid_or_not(self):
        arm = chosen(e2=grid(3.0, 2.0, 2.5))
        self.assertEqual((arm["rate"], arm["is_edge"], arm["is_grid_whole"]), (10.0, False, True))
        arm = chosen(e2=grid(3.0, 2.5, 2.0))
        self.assertEqual((arm["rate"], arm["is_edge"]), (100.0, True))

    def test_epochs_are_chosen_with_the_rate(self):
        arm = chosen(e2=grid(3.0, 2.0, 2.5), e4=grid(3.0, 1.9, 2.5), e8=grid(2.1, 1.95, 2.5))
        self.assertEqual((arm["rate"], arm["epochs"], arm["is_edge"]), (10.0, 4.0, False))
        arm = chosen(e2=grid(3.0, 2.0, 2.5), e4=grid(3.0, 1.9, 2.5))
        self.assertEqual((arm["rate"], arm["epochs"], arm["is_edge"]), (10.0, 4.0, True))
        self.assertEqual(compare.best_grid(arm), grid(3.0, 1.9, 2.5))

    def test_a_grid_that_is_not_whole_says_so(self):
        arm = chosen(e2=grid(3.0, 2.0, None))
        self.assertEqual((arm["rate"], arm["is_edge"], arm["is_grid_whole"]), (10.0, False, False))
        arm = chosen(e2=grid(None, None))
        self.assertEqual((arm["rate"], arm["is_edge"]), (None, False))
        arm = chosen(e2={1.0: ended(None)})
        self.assertEqual((arm["rate"], arm["is_grid_whole"]), (None, True))

    def test_a_parabola_is_lowest_where_it_should_be(self):
        self.assertAlmostEqual(compare.vertex(grid(3.0, 2.0, 3.0), 10.0), 10.0)
        # (x - 1.25)^2 at x = 0, 1, 2 of log10
        self.assertAlmostEqual(compare.vertex(grid(1.5625, 0.0625, 0.5625), 10.0), 10 ** 1.25)
        self.assertIsNone(compare.vertex(grid(3.0, 2.0, 1.0), 100.0))
        self.assertIsNone(compare.vertex({1.0: ended(3.0), 10.0: ended(2.0), 100.0: ended(None)}, 10.0))


class Ratios(unittest.TestCase):
    def test_a_ratio_is_of_the_seeds_that_both_have(self):
        full = {"runs": {1: ended(2.0), 2: ended(4.0), 3: None}}
        self.assertAlmostEqual(compare.ratio(full, {"runs": {1: ended(2.2), 2: ended(4.4)}}), 1.1)
        self.assertAlmostEqual(compare.ratio(full, {"runs": {1: ended(3.0), 2: None, 3: ended(9.0)}}), 1.5)
        self.assertIsNone(compare.ratio(full, {"runs": {3: ended(1.0)}}))

    def test_the_best_arm_has_the_lowest_mean(self):
        one, two = {"runs": {1: ended(2.0), 2: ended(2.4)}}, {"runs": {1: ended(2.1), 2: ended(2.1)}}
        self.assertIs(compare.best_of([one, two]), two)
        self.assertIsNone(compare.best_of([{"runs": {1: None}}]))


if __name__ == "__main__":
    unittest.main()
