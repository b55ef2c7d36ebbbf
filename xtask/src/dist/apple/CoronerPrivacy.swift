// A target has a source file: this one is here for PrivacyInfo.xcprivacy.
