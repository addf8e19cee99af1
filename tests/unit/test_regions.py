from roofprobe.regions import Guide, Itinerary, Label, Tracker, labels_of, stop_at

A, B, C = (Label("", name, "forward") for name in "abc")
OUTSIDE = Label()


def test_ranges_nest_and_modules_lie_within():
    labels = []
    tracker = Tracker(labels.append)
    step = tracker.enter_range("forward")
    layer = tracker.enter_module("net", "forward")
    inner = tracker.enter_range("attention")
    head = tracker.enter_module("net.head", "forward")
    for frame in (head, inner, layer, step):
        tracker.leave(frame)
    assert labels == [
        Label("forward"),
        Label("forward", "net", "forward"),
        Label("forward/attention", "net", "forward"),
        Label("forward/attention", "net.head", "forward"),
        Label("forward/attention", "net", "forward"),
        Label("forward", "net", "forward"),
        Label("forward"),
        OUTSIDE,
    ]


def test_the_same_module_again_is_no_change():
    labels = []
    tracker = Tracker(labels.append)
    outer = tracker.enter_module("a", "forward")
    inner = tracker.enter_module("a", "forward")
    tracker.leave(inner)
    tracker.leave(outer)
    assert labels == [A, OUTSIDE]


def test_leaving_takes_what_was_left_open_above_and_twice_is_once():
    labels = []
    tracker = Tracker(labels.append)
    outer = tracker.enter_module("a", "forward")
    lost = tracker.enter_module("b", "forward")
    tracker.leave(outer)
    tracker.leave(lost)
    tracker.leave(outer)
    assert labels == [A, B, OUTSIDE]
    tracker.enter_module("c", "backward")
    assert labels[-1] == Label("", "c", "backward")


def test_what_holds_of_every_step():
    first = Itinerary((OUTSIDE, A, B), (True, False, True))
    second = Itinerary((OUTSIDE, A, B), (True, False, False))
    assert Itinerary.common([first, second]) == Itinerary((OUTSIDE, A, B), (True, False, False))
    other = Itinerary((OUTSIDE, B), (True, False))
    assert Itinerary.common([first, other]) == Itinerary((), ())
    assert Itinerary.common([]) == Itinerary((), ())
    assert labels_of([first, other, Itinerary((C,), (False,))]) == (OUTSIDE, A, B, C)


def test_a_guide_leaves_out_stops_without_work():
    known = Itinerary((OUTSIDE, A, OUTSIDE, B, OUTSIDE), (True, False, True, False, False))
    assert known.switches == 3  # into a, into b, out of b
    guide = Guide(known)
    assert [guide.wanted(label) for label in known.stops[1:]] == [True, False, True, True]


def test_a_guide_that_is_lost_leaves_out_nothing():
    known = Itinerary((OUTSIDE, A, OUTSIDE, B), (True, False, True, False))
    guide = Guide(known)
    assert guide.wanted(A)
    assert guide.wanted(C)  # not the known way
    assert guide.wanted(OUTSIDE)
    assert guide.wanted(B)
    longer = Guide(Itinerary((OUTSIDE, A), (True, True)))
    assert not longer.wanted(A)
    assert longer.wanted(B)  # past the end of the known way
    assert Guide(Itinerary((), ())).wanted(A)


def test_the_stop_of_a_moment():
    starts = (1.0, 2.0, 4.0)
    assert stop_at(starts, 0.5) is None
    assert [stop_at(starts, time) for time in (1.0, 1.9, 2.0, 3.0, 9.0)] == [0, 0, 1, 1, 2]
    assert stop_at((), 1.0) is None
