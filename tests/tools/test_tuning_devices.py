"""Searches on several devices."""


def test_devices_do_not_mix(tuned):
    tuned("""
        kernels = cutlass_api.get_kernels(args)[10:12]
        there = [Tensor(at, shape, device=1) for at, shape in
                 ((A, (128, 256)), (B, (256, 64)), (OUT, (128, 64)))]
        there = GemmArguments(*there, "float32")
        before = names(there)
        cutlass_api.autotune(args, kernels=kernels, progress=False)
        assert names(there) == before
        result = cutlass_api.autotune(there, kernels=kernels[::-1], progress=False)
        assert result.device == "stand-in 1" and names(there)[0] != before[0]
        assert {stored.device for stored in tuning.stored_results()} == {"stand-in 0", "stand-in 1"}
    """)


def test_devices_share_the_candidates(tuned):
    tuned("""
        device.library.stand_in_name_alike()
        kernels = cutlass_api.get_kernels(args)[:12]
        one = cutlass_api.autotune(args, kernels=kernels, progress=False)
        benchmarks_of = tuning._benchmarks
        recorded = []

        class Seen:
            def __init__(self, benchmark):
                self.benchmark, self.at = benchmark, len(recorded)
                recorded.append(0)

            def record(self, compiled):
                recorded[self.at] += 1
                return self.benchmark.record(compiled)

            def __getattr__(self, name):
                return getattr(self.benchmark, name)

        tuning._benchmarks = lambda *given: [Seen(of) for of in benchmarks_of(*given)]
        all_ = cutlass_api.autotune(args, kernels=kernels, devices="all", progress=False)
        assert recorded == [6 + 8, 6], "a share on each, and the finalists of both on the first"
        tuning._benchmarks = benchmarks_of
        assert all_.winner is one.winner and all_.device == one.device == "stand-in 0"
        assert {trial.kernel for trial in all_.trials} == {trial.kernel for trial in one.trials}
        assert [trial.is_finalist for trial in all_.trials[:4]] == [True] * 4
        other = cutlass_api.autotune(args, kernels=kernels, devices=[1], progress=False)
        assert other.winner is one.winner and other.key == one.key
        assert len(tuning.stored_results()) == 4
        import gc
        gc.collect()
        assert handles()[:3] == [0, 0, 0]
    """)


def test_devices_of_other_names_do_not_take_part(tuned):
    tuned("""
        result = cutlass_api.autotune(args, budget=4, devices="all", progress=False)
        assert {stored.device for stored in tuning.stored_results()} == {"stand-in 0"}
        said = "devices has 1, and the GPUs of the name of", "are [0]; times of other GPUs do not"
        with raises(ValueError, *said):
            cutlass_api.autotune(args, devices=[0, 1], progress=False)
    """)


def test_ctrl_c_ends_the_search_on_all_devices(tuned):
    tuned("""
        device.library.stand_in_name_alike()

        class Interrupting(_tuner.Timed):
            count = 0

            def turn(self):
                Interrupting.count += 1
                if Interrupting.count == 8:
                    raise KeyboardInterrupt
                return super().turn()

        _tuner.Timed = Interrupting
        try:
            cutlass_api.autotune(args, search="exhaustive", devices="all", progress=False)
        except KeyboardInterrupt:
            assert 0 < len(tuning.stored_results()) <= 4
            assert Interrupting.count < 40
        else:
            raise AssertionError
    """)
