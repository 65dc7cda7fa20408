// What the rest of the kernel calls on this path: run a problem, or say what scratch it needs.

template <class Body>
static void with_element_type(const Problem& p, Body body) {
  switch (p.element_type) {
    case kFloat32: return body(Float32{});
    case kBFloat16: return body(BFloat16{});
    case kFloat16: return body(Float16{});
  }
}

int64_t forward_scratch_bytes(const Problem& p) { return Forward(p, Arena(nullptr)).scratch_bytes(); }

bool forward(const Problem& p) {
  Forward pass(p, Arena(p.scratch));
  with_element_type(p, [&](auto element) { pass.run<decltype(element)>(); });
  return true;
}

int64_t backward_scratch_bytes(const Problem& p) { return Backward(p, Arena(nullptr)).scratch_bytes(); }

bool backward(const Problem& p) {
  Backward pass(p, Arena(p.scratch));
  with_element_type(p, [&](auto element) { pass.run<decltype(element)>(); });
  return true;
}
