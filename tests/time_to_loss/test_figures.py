"""Figures of bench/time_to_loss against numbers worked out by hand."""
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench", "time_to_loss"))
import figures  # noqa: E402


def ended(spent, seconds, loss):
    return {"spent": spent, "train_s": seconds, "val_loss": loss}


class Figures(unittest.TestCase):
    def near(self, found, mark, *numbers):
        self.assertEqual(found[0], mark)
        for number, expected in zip(found[1:], numbers):
            self.assertAlmostEqual(number, expected, delta=0.01 * expected)

    def test_a_curve_is_read_between_its_points(self):
        curve = [[10, 10, 1.0, 5.0], [20, 20, 2.0, 4.0], [30, 30, 3.0, 3.0]]
        self.near(figures.reach_on_curve(curve, 3.5), "", 25, 2.5)
        self.near(figures.reach_on_curve(curve, 5.5), "<", 10, 1)
        self.assertIsNone(figures.reach_on_curve(curve, 2.9))

    def test_a_curve_counts_where_it_first_crosses(self):
        curve = [[10, 10, 1.0, 5.0], [20, 20, 2.0, 3.0], [30, 30, 3.0, 4.0]]
        self.near(figures.reach_on_curve(curve, 4.0), "", 15, 1.5)

    def test_the_length_that_ends_at_a_loss_lies_between_two_runs(self):
        lengths = [ended(100, 10, 3.0), ended(50, 5, 4.0), ended(80, 8, 3.2)]
        self.near(figures.reach_by_length(lengths, 3.6), "", 65, 6.5)
        self.near(figures.reach_by_length(lengths, 4.1), "<", 50, 5)
        self.near(figures.reach_by_length(lengths, 2.9), ">", 100, 10)

    def test_a_shorter_run_that_was_lucky_is_averaged_with_its_neighbour(self):
        self.assertEqual(figures.made_falling([5, 3, 4, 2]), [5, 3.5, 3.5, 2])
        lengths = [ended(50, 5, 4.0), ended(80, 8, 4.4), ended(100, 10, 3.2)]
        self.near(figures.reach_by_length(lengths, 4.0), "", 84, 8.4)  # 4.2 at 80, 3.2 at 100

    def test_factors_are_of_the_same_seed(self):
        base = {1: ended(100, 50, 3.5), 2: ended(100, 60, 3.0)}
        of_seed = {1: [ended(50, 20, 4.0), ended(100, 40, 3.0)], 2: [ended(50, 20, 2.9), ended(100, 40, 2.5)]}
        compute, seconds = figures.factors(base, of_seed)
        self.near(compute[0], "", 100 / 75)
        self.near(seconds[0], "", 50 / 30)
        self.near(compute[1], ">", 2)  # the shortest is there already: at least that much
        self.near(seconds[1], ">", 3)

    def test_what_prints_the_same_is_reached(self):
        self.near(figures.reach_by_length([ended(50, 5, 4), ended(100, 10, 3.00001)], 3.0), "", 100, 10)

    def test_a_spread_shows_a_mark_that_any_value_has(self):
        self.assertEqual(figures.spread([("", 1.0), ("", 2.0), ("", 4.0)], ".1f"), "2.0 (1.0 to 4.0)")
        self.assertEqual(figures.spread([("", 1.0), (">", 2.0)], ".1f"), ">1.5 (1.0 to 2.0)")
        self.assertEqual(figures.spread([], ".1f"), "-")


if __name__ == "__main__":
    unittest.main()
