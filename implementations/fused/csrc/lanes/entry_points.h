// What the rest of the kernel calls on this path: run a problem, or say what scratch it needs.

template <class Body>
static void with_element_type(const Problem& p, Body body) {
  switch (p.element_type) {
    case kFloat32: return body(Float32{});
    case kBFloat16: return body(BFloat16{});
    case kFloat16: return body(Float16{});
  }
}

int64_t forward_scratch_bytes(const Problem& p) {
  return Decode::suits(p) ? Decode(p, Arena(nullptr)).scratch_bytes() : Forward(p, Arena(nullptr)).scratch_bytes();
}

template <class Pass>
static void run_pass(const Problem& p) {
  Pass pass(p, Arena(p.scratch));
  with_element_type(p, [&](auto element) { pass.template run<decltype(element)>(); });
}

bool forward(const Problem& p) {
  Decode::suits(p) ? run_pass<Decode>(p) : run_pass<Forward>(p);
  return true;
}

int64_t backward_scratch_bytes(const Problem& p) { return Backward(p, Arena(nullptr)).scratch_bytes(); }

bool backward(const Problem& p) {
  run_pass<Backward>(p);
  return true;
}
