// Weights that are powers of what a score has above its row's level.
struct Powers {
  float power;

  REGARD_MEMBER Vec below(Vec x) const {  // x^(power - 1) where x > 0, else 0
    if (power == 1.0f) return choose(IntVec(x > 0.0f), all(1.0f), Vec{});
    if (power == 2.0f) return x;
    return exp2((power - 1.0f) * LOG2_E * log(x));
  }

  // The weight and its slope, for x above 0.
  REGARD_MEMBER void weigh(Vec x, Vec& w, Vec& slope) const {
    const Vec less = power == 1.0f ? all(1.0f) : below(x);
    w = less * x, slope = power * less;
  }

  // The step of Newton's method towards where the norm (sum x^p)^(1/p) is 1, which it never passes: the norm is convex.
  double step(double total, double slope) const {
    if (slope == 0.0) return 0.0;
    if (power == 1.0f) return (total - 1.0) / slope;
    return (1.0 - (power == 2.0f ? 1.0 / std::sqrt(total) : std::pow(total, -1.0 / power))) * total / slope;
  }
};

