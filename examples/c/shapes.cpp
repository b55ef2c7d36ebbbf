// An app in C++ with Coroner.
//
//     cargo build -p coroner-ffi --release
//     L="target/release/libcoroner_ffi.a -lpthread -ldl -lm"
//     c++ -std=c++17 -g -o shapes examples/c/shapes.cpp -Icrates/bindings/ffi/include $L
//     ./shapes crash     # crashes
//     ./shapes           # reports it, and stores the report

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "coroner.h"

namespace shapes {

class Shape {
public:
    virtual ~Shape() = default;
    virtual double area() const = 0;
};

class Square : public Shape {
public:
    explicit Square(double side) : side_(side) {}
    double area() const override { return side_ * side_; }

private:
    double side_;
};

// A bug, as one has them: nobody checks that there is a shape.
double total(const std::vector<std::unique_ptr<Shape>> &all)
{
    double sum = 0;
    for (const auto &shape : all)
        sum += shape->area();
    return sum;
}

} // namespace shapes

static void start_coroner(const char *store)
{
    coroner_config *config = coroner_config_new("com.example.shapes");
    coroner_config_set_version(config, "1.0.0");
    if (store != nullptr)
        coroner_config_set_store_dir(config, store);
    if (coroner_install(config) != CORONER_STATUS_OK)
        std::fprintf(stderr, "crashes will not be reported: %s\n", coroner_last_error());
}

int main(int argc, char **argv)
{
    const bool crash = argc > 1 && std::string(argv[1]) == "crash";

    start_coroner(std::getenv("SHAPES_STORE"));
    coroner_set_tag("canvas", "small");
    coroner_last_run_info last = {};
    last.size = sizeof last;
    if (coroner_last_run(&last) == CORONER_STATUS_OK && last.outcome == CORONER_OUTCOME_CRASHED)
        std::printf("the last run crashed: %s\n", last.event_id);

    std::vector<std::unique_ptr<shapes::Shape>> all;
    all.push_back(std::make_unique<shapes::Square>(2));
    if (crash)
        all.push_back(nullptr);
    std::printf("total: %.0f\n", shapes::total(all));
    coroner_flush(5000);
    return 0;
}
