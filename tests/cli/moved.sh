# moved.sh: a run is one folder: moved, copied, without the model it began as, and gone back in.

test_resume_of_a_copy_leaves_the_original_alone() {
    run_tiny --out out --steps 3
    expect_code 0
    cp -r out copy
    find out -type f -exec cksum {} + | sort > ../original
    run --resume copy --steps 6
    expect_code 0
    expect_file copy/checkpoint-6
    expect_same "$(find out -type f -exec cksum {} + | sort)" "$(cat ../original)" "the original"
    mkdir elsewhere
    mv copy elsewhere/run
    cd elsewhere || fail "no folder"
    run --resume run/checkpoint-3 --steps 7
    expect_code 0
    expect_file run/checkpoint-7
    [ ! -e copy ] && [ ! -e ../copy ] || fail "the run went on under its old name"
    run --resume run --out third --steps 8 # who names a folder gets it
    expect_code 0
    expect_file third/checkpoint-8
    [ ! -e run/checkpoint-8 ] || fail "run was continued although --out says third"
}

test_a_run_that_went_back_goes_on_from_its_own_branch() {
    run_tiny --out out --save-every 2 --keep 2
    expect_code 0
    expect_file out/checkpoint-6
    run --resume out/checkpoint-4 --steps 5
    expect_code 0
    expect_out "goes back to step 4: it does not go on from checkpoint-6 of out any more"
    run --resume out --steps 7
    expect_code 0
    expect_out "resumed out/checkpoint-5"
    expect_file out/checkpoint-7
    expect_file out/checkpoint-6.branch-0
    [ ! -e out/checkpoint-5 ] || fail "the current branch is not pruned"
}
