// The app's C++, which uses the Coroner that Kotlin installed.
#include <jni.h>

#include "coroner.h"

namespace shop {

struct Card {
    int limit;
};

// A bug, as one has them: nobody checks that there is a card.
__attribute__((noinline)) int charge(const Card *card)
{
    return card->limit - 1;
}

} // namespace shop

extern "C" JNIEXPORT jint JNICALL Java_com_example_shop_Checkout_pay(JNIEnv *, jclass, jlong card)
{
    coroner_add_breadcrumb("checkout", "pays", CORONER_LEVEL_INFO);
    coroner_set_tag("card", "debit");
    return shop::charge(reinterpret_cast<const shop::Card *>(card));
}
